"""Knobs and their choices."""

from __future__ import annotations

import pytest

from voxelocity.tuning.space import Knob, default_settings, is_hopeless, only, single_changes, sizes
from voxelocity_observe.core.errors import ConfigError

SIZE = Knob(name="size", choices=(1, 2, 4), default=2, grows_memory=True)
WORD = Knob(name="word", choices=("a", "b"), default="a")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"choices": (), "default": 1}, "at least one"),
        ({"choices": (1, 1), "default": 1}, "each once"),
        ({"choices": (1, 2), "default": 3}, "none of"),
        ({"choices": (2, 1), "default": 1, "grows_memory": True}, "ascending"),
    ],
)
def test_a_knob_out_of_range_is_refused(given, words):
    with pytest.raises(ConfigError, match=rf"size.*{words}"):
        Knob(name="size", **given)


def test_sizes_are_powers_of_two_with_ends_and_default():
    assert sizes(1, 20, default=6) == (1, 2, 4, 6, 8, 16, 20)
    assert sizes(3, 3, default=3) == (3,)


@pytest.mark.parametrize(("low", "high", "default"), [(0, 4, 2), (5, 4, 4), (1, 4, 8)])
def test_a_range_that_is_empty_or_misses_the_default_is_refused(low, high, default):
    with pytest.raises(ConfigError, match="range"):
        sizes(low, high, default=default)


def test_what_ran_out_of_memory_rules_out_larger_sizes_with_the_same_rest():
    failed = {"size": 2, "word": "a"}
    assert is_hopeless({"size": 4, "word": "a"}, failed, (SIZE, WORD))
    assert not is_hopeless({"size": 1, "word": "a"}, failed, (SIZE, WORD))
    assert not is_hopeless({"size": 4, "word": "b"}, failed, (SIZE, WORD))


def test_single_changes_alternate_between_the_knobs():
    start = default_settings((SIZE, WORD))
    assert single_changes((SIZE, WORD), start) == [
        {"size": 1, "word": "a"},
        {"size": 2, "word": "b"},
        {"size": 4, "word": "a"},
    ]


def test_only_some_knobs_are_searched():
    size, word = only((SIZE, WORD), ["word"])
    assert size.choices == (2,)
    assert not size.is_open
    assert word == WORD


def test_an_unknown_knob_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        only((SIZE, WORD), ["sizes"])
