"""Intensity changes of a channel in one pass, compiled; results rounded step by step as torch rounds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, kernel


@exact_kernel
def scale_range(
    source: Any,
    out: Any,
    start: Any,
    width: Any,
    new_width: Any,
    new_start: Any,
    is_moved: Any,
    low: Any,
    high: Any,
) -> None:
    """Fills `out` with (source - start) / width, times `new_width` plus `new_start` where `is_moved`, and clips it.

    All numbers are float32; `low` and `high` are infinite where there is no limit. `out` may be `source`.
    """
    if is_moved:
        for i in range(source.size):
            value = (source[i] - start) / width * new_width + new_start
            value = low if value < low else value
            out[i] = high if value > high else value
    else:
        for i in range(source.size):
            value = (source[i] - start) / width
            value = low if value < low else value
            out[i] = high if value > high else value


@kernel
def moments(values: Any, shift: Any, is_nonzero_only: Any) -> Any:
    """Number of values, and their sum and sum of squares in float64 after subtracting `shift`."""
    num, total, squares = 0, 0.0, 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        is_counted = not is_nonzero_only or value != 0.0
        centered = value - shift if is_counted else 0.0
        num += 1 if is_counted else 0
        total += centered
        squares += centered * centered
    return num, total, squares


@exact_kernel
def normalize(source: Any, out: Any, mean: Any, deviation: Any, is_nonzero_only: Any) -> None:
    """Fills `out` with (source - mean) / deviation, zeros kept where `is_nonzero_only`. `out` may be `source`."""
    for i in range(source.size):
        value = source[i]
        changed = (value - mean) / deviation
        out[i] = value if is_nonzero_only and value == 0 else changed
