"""Resampling on an axis-aligned grid in one compiled pass, for images and labels. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.jit import kernel
from voxelocity.core.numba_interpolation import interpolate, largest_share
from voxelocity.core.volume import Array
from voxelocity.data.prepare.interpolate import Positions, neighbors


def interpolate_compiled(array: Array, positions: tuple[Positions, ...]) -> npt.NDArray[np.float32]:
    """The array (..., x, y, z) as float32 at the given positions of its last three axes, order in memory kept."""
    leading = array.ndim - 3
    slow_to_fast = sorted(range(3), key=lambda axis: -abs(array.strides[leading + axis]))
    order = [*range(leading), *(leading + axis for axis in slow_to_fast)]
    shape = (*array.shape[:leading], *(len(positions[axis]) for axis in slow_to_fast))
    out = np.empty(shape, dtype=np.float32)
    along = [neighbors(positions[axis], array.shape[leading + axis]) for axis in slow_to_fast]
    source = array.transpose(order)
    if source.dtype == np.float16 or not source.dtype.isnative:
        source = source.astype(np.float32)
    for index in np.ndindex(*array.shape[:leading]):
        interpolate(source[index], out[index], *along)
    return out.transpose(np.argsort(order))


def resample_label_compiled(label_xyz: Array, positions: tuple[Positions, ...]) -> npt.NDArray[np.uint8]:
    """Class indices (x, y, z), uint8: the class with the largest linear share, the lower one of equals."""
    slow_to_fast = sorted(range(3), key=lambda axis: -abs(label_xyz.strides[axis]))
    out = np.empty([len(positions[axis]) for axis in slow_to_fast], dtype=np.uint8)
    along = [neighbors(positions[axis], label_xyz.shape[axis]) for axis in slow_to_fast]
    _fill_label(label_xyz.transpose(slow_to_fast), out, *along)
    return out.transpose(np.argsort(slow_to_fast))


@kernel
def _fill_label(source: Any, out: Any, along_a: Any, along_b: Any, along_c: Any) -> None:
    (below_a, above_a, weight_a), (below_b, above_b, weight_b), (below_c, above_c, weight_c) = along_a, along_b, along_c
    one = np.float32(1.0)
    for i in range(out.shape[0]):
        wa = weight_a[i]
        for j in range(out.shape[1]):
            wb = weight_b[j]
            r00, r01 = source[below_a[i], below_b[j]], source[below_a[i], above_b[j]]
            r10, r11 = source[above_a[i], below_b[j]], source[above_a[i], above_b[j]]
            u00, u01, u10, u11 = (one - wa) * (one - wb), (one - wa) * wb, wa * (one - wb), wa * wb
            row = out[i, j]
            for k in range(row.size):
                low, high = below_c[k], above_c[k]
                first = r00[low]
                differs = (first ^ r00[high]) | (first ^ r01[low]) | (first ^ r01[high]) | (first ^ r10[low])
                differs |= (first ^ r10[high]) | (first ^ r11[low]) | (first ^ r11[high])
                if differs == 0:
                    row[k] = first
                    continue
                w = weight_c[k]
                u = one - w
                labels = (first, r00[high], r01[low], r01[high], r10[low], r10[high], r11[low], r11[high])
                shares = (u00 * u, u00 * w, u01 * u, u01 * w, u10 * u, u10 * w, u11 * u, u11 * w)
                row[k] = largest_share(labels, shares)
