"""Values against the types of a record's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from voxelocity_observe.core.plain import record_of


@dataclass(frozen=True)
class Seen:
    """A field of each kind that records have."""

    seconds: float = 0.0
    count: int = 0
    is_on: bool | None = None
    phase: Literal["watched", "warm-up"] = "watched"
    parts: Mapping[str, float] | None = None
    names: Sequence[str] = ()
    shapes: Sequence[tuple[Sequence[int], int]] = ()
    anything: Any = None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"seconds": 1, "count": 2, "is_on": True, "phase": "warm-up", "anything": object()},
        {"seconds": 1.5, "is_on": None, "parts": {"wait": 1}, "names": ["a"], "shapes": [[[1, 2], 3]]},
        {"parts": None, "names": [], "shapes": (((1,), 3),)},
    ],
)
def test_values_of_the_declared_types_fit(values):
    assert record_of(Seen, values) == record_of(Seen, {**values, "of another version": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", "1"),
        ("seconds", float("nan")),
        ("seconds", True),
        ("count", 1.5),
        ("is_on", 1),
        ("phase", "asleep"),
        ("phase", ["watched"]),
        ("parts", {"wait": None}),
        ("parts", []),
        ("names", "abc"),
        ("names", [1]),
        ("shapes", [[["1"], 3]]),
    ],
)
def test_anything_else_does_not_fit(name, value):
    with pytest.raises(ValueError, match=" is n"):
        record_of(Seen, {name: value})
