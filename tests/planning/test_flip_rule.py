"""Which axes a plan flips, and which classes it swaps, for classes with and without sides."""

from types import SimpleNamespace

import pytest

from voxelocity.core.config import set_value
from voxelocity.core.errors import ConfigError
from voxelocity.planning.facts import Facts
from voxelocity.planning.flip_rule import settle_flips

PAIR = ["RightParotid", "LeftParotid"]


def planned(*class_names, orientation="RAS", **overrides):
    """The rule's choices by the last part of their keys."""
    keys = {f"data.augment.{key}": value for key, value in overrides.items()}
    data = SimpleNamespace(class_names=("background", *class_names))
    facts = Facts(data=data, machine=None, request=None, overrides=keys)
    set_value(facts.settled, "data.prepare.orientation", orientation)
    settle_flips(facts)
    return {choice.key.removeprefix("data.augment."): choice for choice in facts.choices}


def test_classes_without_sides_are_flipped_and_nothing_is_said_of_pairs():
    choices = planned("anterior", "posterior")
    assert choices.keys() == {"flip_probability"}
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]
    assert "no class name states a side, so no labels are swapped" in choices["flip_probability"].reason
    assert "side" not in planned("tumour")["flip_probability"].reason


def test_a_pair_is_swapped_where_left_and_right_are_flipped():
    choices = planned("Mandible", *PAIR)
    assert choices["swap_pairs"].value == [PAIR]
    assert choices["swap_pairs"].reason == (
        "classes 2/3 RightParotid/LeftParotid are a pair: a left-right flip swaps their labels"
    )
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("LeftParotid", "Mandible"), "LeftParotid is labeled on one side only, and a flip would make the other look"),
        (("left_ventricle", "right_ventricle"), "the mirror image of one of left_ventricle and right_ventricle"),
    ],
)
def test_nothing_is_flipped_where_a_flip_would_show_a_false_side(names, text):
    choices = planned(*names)
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert text in choices["flip_probability"].reason


def test_pairs_in_any_language_are_named_by_the_user():
    choices = planned("Niere links", "Niere rechts", swap_pairs=[["Niere links", "Niere rechts"]])
    assert choices["swap_pairs"].reason == "set by you; the rule would have chosen ()"
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"swap_pairs names 'Niere recht', which .* did you mean 'Niere rechts'"):
        planned("Niere links", "Niere rechts", swap_pairs=[["Niere links", "Niere recht"]])


def test_a_pair_that_the_user_does_not_swap_is_not_flipped_unless_asked_for():
    choices = planned(*PAIR, swap_pairs=[])
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert "swap_pairs leaves out RightParotid and LeftParotid" in choices["flip_probability"].reason
    asked = planned(*PAIR, swap_pairs=[], flip_probability=[0.5, 0.0, 0.0])
    assert asked["flip_probability"].value == [0.5, 0.0, 0.0]


def test_a_pair_in_scans_that_keep_their_orientation_is_not_flipped():
    choices = planned(*PAIR, orientation="keep")
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert "no axis is known to run from left to right" in choices["flip_probability"].reason
