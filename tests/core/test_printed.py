from typing import Annotated, Literal

import pytest
from pydantic import Field

from voxelocity.core.config import Auto
from voxelocity.core.printed import read_printed

Positive = Annotated[int, Field(gt=0)]
Triple = tuple[Positive, Positive, Positive]


@pytest.mark.parametrize(
    ("printed", "annotation", "key", "value"),
    [
        ("40 × 40 × 48", Triple, "shape_voxel", [40, 40, 48]),
        ("0.5, 0, 0", tuple[float, float, float], "flip_probability", [0.5, 0, 0]),
        ("8, 32, 64", tuple[int, ...], "widths", [8, 32, 64]),
        (0, tuple[int, ...], "mirror_axes", [0]),
        ("none", tuple[int, ...], "mirror_axes", []),
        ("2 × 2 × 2, 1 × 2 × 2", tuple[Triple, ...], "strides", [[2, 2, 2], [1, 2, 2]]),
        ("left eye, right eye, L, R", tuple[tuple[str, str], ...], "pairs", [["left eye", "right eye"], ["L", "R"]]),
        ("33.0 %", Annotated[float, Field(le=1)], "foreground_share", 0.33),
        ("4,000", int, "steps", 4000),
        ("10.5 GiB", int | Auto, "max_bytes", 10.5 * 2**30),
        ("5 min 2 s", float, "time_budget_s", 302.0),
        ("0 s", float, "time_budget_s", 0.0),
        ("auto", Triple | Auto, "shape_voxel", "auto"),
        ("memory", Literal["memory", "disk"], "tier", "memory"),
        ("33 %", str, "folder", "33 %"),
        ("four", int, "steps", "four"),
    ],
)  # fmt: skip
def test_what_was_printed_is_read_back(printed, annotation, key, value):
    assert read_printed(printed, annotation, key) == value
