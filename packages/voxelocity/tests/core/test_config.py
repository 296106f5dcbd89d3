from typing import Literal

import pytest
from pydantic import Field

from voxelocity.core.config import Config, check_key, check_value, flatten, set_value, valid_keys
from voxelocity_observe.core.errors import ConfigError


class Inner(Config):
    learning_rate: float = Field(default=0.1, gt=0.0)
    name: Literal["sgd", "adamw"] = "sgd"
    shape: tuple[int, int, int] = (1, 2, 3)
    steps: tuple[tuple[int, int, int], ...] = ()


class Outer(Config):
    seed: int = 0
    step: Inner = Inner()


def test_values_survive_the_way_through_plain_types():
    config = Outer.parse({"seed": 3, "step": {"learning_rate": 0.5, "shape": [4, 5, 6]}})
    assert Outer.parse(config.to_plain()) == config


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"run.yaml: unknown key 'step.learning_rat'; did you mean 'step.learning_rate'\?"
    ):
        Outer.parse({"step": {"learning_rat": 1.0}}, where="run.yaml")


def test_a_key_in_the_wrong_section_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"unknown key 'learning_rate'; did you mean 'step.learning_rate'\?"):
        check_key(Outer, "learning_rate")


def test_a_value_out_of_range_names_key_value_and_range():
    with pytest.raises(ConfigError, match=r"step.learning_rate = -1.0 is not valid: Input should be greater than 0"):
        Outer.parse({"step": {"learning_rate": -1.0}})
    with pytest.raises(ConfigError, match=r"step.name = 'adam' is not valid: Input should be 'sgd' or 'adamw'"):
        check_value(Outer, "step.name", "adam")


def test_one_value_is_checked_and_returned_in_plain_types():
    assert check_value(Outer, "step.shape", (4, 5, 6)) == [4, 5, 6]
    assert check_value(Outer, "seed", "7") == 7


@pytest.mark.parametrize("text", ["4, 5, 6", "4,5,6", "4 x 5 x 6", "4 × 5 × 6"])
def test_numbers_are_taken_as_the_plan_prints_them(text):
    assert check_value(Outer, "step.shape", text) == [4, 5, 6]


def test_a_list_that_is_too_short_within_another_is_said_to_be():
    with pytest.raises(ConfigError, match=r"step.steps = \[\[2, 2\]\] is not valid: a list in it has too few values"):
        check_value(Outer, "step.steps", [[2, 2]])


@pytest.mark.parametrize("value", ["four", 4])
def test_a_field_of_several_values_says_how_to_write_them(value):
    with pytest.raises(ConfigError, match=rf"step.shape = {value!r} is not valid: give 3 values, such as 1, 1, 1"):
        check_value(Outer, "step.shape", value)


def test_nested_and_dotted_keys_become_the_same_flat_ones():
    nested = flatten(Outer, {"seed": 1, "step": {"name": "adamw"}})
    assert nested == flatten(Outer, {"seed": 1, "step.name": "adamw"}) == {"seed": 1, "step.name": "adamw"}


def test_all_keys_are_listed():
    assert valid_keys(Outer) == ["seed", "step", "step.learning_rate", "step.name", "step.shape", "step.steps"]


def test_setting_below_a_plain_value_is_refused():
    with pytest.raises(ConfigError, match=r"'seed\.x' goes below 'seed', which holds the value 3"):
        set_value({"seed": 3}, "seed.x", 1)
