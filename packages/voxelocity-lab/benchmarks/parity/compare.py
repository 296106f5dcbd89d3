"""A transform and its lowering, fed the same draw and the same data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from voxelocity.monai.difference import Difference, differences_of
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower import Lowering
from voxelocity.monai.lower.pending import finish


def compare(transform: Any, lowering: Lowering, data: Any) -> tuple[Any, Any, list[Difference]]:
    """MONAI's result, ours, and how each tensor of them differs; neither the transform nor the data is changed.

    Both sides get a copy of the transform, with the same random state, and of the data. If their random states differ
    afterwards, that is a difference of the key "R".
    """
    theirs_by, ours_by = copy.deepcopy(transform), copy.deepcopy(transform)
    given, kept = deep_copy(data), deep_copy(data)
    theirs = theirs_by(given)
    ours = finish(lowering.apply(ours_by, kept))
    differences = list(differences_of(theirs, ours))
    if not _same_state(theirs_by, ours_by):
        words = "drawn from differently"
        differences.append(Difference(key="R", largest=0.0, scale=0.0, share=0.0, is_whole=False, words=words))
    return theirs, ours, differences


def _same_state(one: Any, other: Any) -> bool:
    """Whether two copies of a transform, and all transforms inside them, would draw the same next."""
    states = [list(_states(transform, set())) for transform in (one, other)]
    return len(states[0]) == len(states[1]) and all(map(_is_equal_state, *states))


def _states(transform: Any, seen: set[int]) -> Iterator[Any]:
    if id(transform) in seen or not hasattr(transform, "__dict__"):
        return
    seen.add(id(transform))
    if isinstance(vars(transform).get("R"), np.random.RandomState):
        yield transform.R.get_state()
    for value in vars(transform).values():
        for inner in value if isinstance(value, list | tuple) else [value]:
            if type(inner).__module__.startswith("monai."):
                yield from _states(inner, seen)


def _is_equal_state(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one[1], other[1])) and one[2:] == other[2:]
