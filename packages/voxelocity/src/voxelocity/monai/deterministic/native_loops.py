"""Compiled loops of the transforms, over a channel or a whole volume. Nothing here holds the GIL.

Arrays are in C order. A wrong dtype, order or shape is a ValueError, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, need_shapes
from voxelocity.core.volume import Array

_Indices = npt.NDArray[np.int64]
_STORED = ("uint8", "int16", "int32", "float32", "float64")
_ALONG = ("in int64", "in int64", "in float64", "in float64")

_positive_box = NativeLoop("positive_box", "in float32", "in int64", "in int64", "int", "float", "out int64")
_sum_moments = NativeLoop("sum_moments", "in float32", "int", "double", "int", "out float64")
_normalize = NativeLoop("normalize", "in float32", "out float32", "int", "float", "float", "int")
_sample_linear = NativeLoop("sample_linear", "in stored", "in int64", *_ALONG * 3, "out float32", stored=_STORED)
_sample_nearest = NativeLoop(
    "sample_nearest", "in stored", "in int64", "in int64", "in int64", "in int64", "out float32", stored=_STORED
)


def positive_box(image: Array, channels: _Indices, threshold: float) -> tuple[_Indices, _Indices]:
    """First and last index (3,), (3,) of the voxels above `threshold` in these channels; last is -1 if none is.

    Voxels that cannot widen the box are not read.

    Args:
        image: (c, x, y, z) float32, of any order of axes in memory; copied if it is not dense.
        channels: (n,).
        threshold: rounded to float32.
    """
    # The loop wants the axis last along which neighbors lie in memory.
    order = sorted(range(3), key=lambda axis: -abs(image.strides[axis + 1]))
    turned = np.ascontiguousarray(image.transpose(0, *(axis + 1 for axis in order)))
    box = np.empty((2, 3), np.int64)
    _positive_box(turned, _sizes(*turned.shape), _sizes(*channels), len(channels), float(threshold), box)
    first, last = np.empty_like(box)
    first[order], last[order] = box
    return first, last


def moments(values: Array, shift: float, *, is_nonzero_only: bool) -> tuple[int, float, float]:
    """Number of values, and their sum and sum of squares in float64 after subtracting `shift`."""
    sums = np.empty(3)
    _sum_moments(values, values.size, float(shift), is_nonzero_only, sums)
    num, total, squares = sums.tolist()
    return int(num), total, squares


def normalize(source: Array, out: Array, mean: float, deviation: float, *, is_nonzero_only: bool) -> None:
    """Fills `out` (n,) with (source - mean) / deviation, zeros kept where `is_nonzero_only`; it may be `source`."""
    need_shapes("normalize", out=(out, source.shape))
    _normalize(source, out, source.size, float(mean), float(deviation), is_nonzero_only)


def sample_linear(source: Array, out: Array, *along: Sequence[Array]) -> None:
    """Fills `out` (x, y, z) with the weighted means of eight voxels, summed in float64 and rounded once.

    Each `along` is two arrays of indices and two of float64 weights, of the voxels below and above each sample.

    Not `native.interpolate`: that one sums in float32, and torch weights both neighbors.
    """
    for parts, length in zip(along, out.shape, strict=True):
        need_shapes("sample_linear", **{f"along_{number}": (part, (length,)) for number, part in enumerate(parts)})
    _sample_linear(source, _sizes(*source.shape, *out.shape), *(part for parts in along for part in parts), out)


def sample_nearest(source: Array, out: Array, *along: _Indices) -> None:
    """Fills `out` (x, y, z) with the voxels at these indices of each axis, and with zero where one is negative."""
    for index, length in zip(along, out.shape, strict=True):
        need_shapes("sample_nearest", index=(index, (length,)))
    _sample_nearest(source, _sizes(*source.shape, *out.shape), *along, out)


def _sizes(*numbers: int) -> _Indices:
    return np.array(numbers, dtype=np.int64)
