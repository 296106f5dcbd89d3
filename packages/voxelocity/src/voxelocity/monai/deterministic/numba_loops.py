"""Compiled loops of the transforms, over a channel or a whole volume. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, kernel


@exact_kernel
def positive_box(image_cxyz: Any, channels: Any, threshold: Any) -> Any:
    """First and last index (3,), (3,) of the voxels above `threshold` in these channels; last is -1 if none is.

    Voxels that cannot widen the box are not read.
    """
    first = np.array(image_cxyz.shape[1:], np.int64)
    last = np.full(3, -1, np.int64)
    num_x, num_y, num_z = image_cxyz.shape[1:]
    for channel in channels:
        for x in range(num_x):
            for y in range(num_y):
                row = image_cxyz[channel, x, y]
                is_inside = first[0] <= x <= last[0] and first[1] <= y <= last[1]
                # A row within the box so far can only lengthen it at its ends.
                before = min(first[2], num_z) if is_inside else num_z
                z = 0
                while z < before and not row[z] > threshold:
                    z += 1
                is_found = z < before
                if is_found:
                    first[2] = min(first[2], z)
                elif not is_inside:
                    continue
                after = max(last[2], z if is_found else -1)
                z = num_z - 1
                while z > after and not row[z] > threshold:
                    z -= 1
                last[2] = max(last[2], z)
                if not is_inside:
                    first[0], last[0] = min(first[0], x), max(last[0], x)
                    first[1], last[1] = min(first[1], y), max(last[1], y)
    return first, last


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


@kernel
def sample_linear(source_xyz: Any, out_xyz: Any, along_x: Any, along_y: Any, along_z: Any) -> None:
    """Fills `out_xyz` with the weighted means of eight voxels, summed in float64 and rounded once.

    Each `along` is two arrays of indices and two of weights, of the voxels below and above each sample.

    Not `native.interpolate`: that one sums in float32, and torch weights both neighbors.
    """
    low_x, high_x, weight_low_x, weight_high_x = along_x
    low_y, high_y, weight_low_y, weight_high_y = along_y
    low_z, high_z, weight_low_z, weight_high_z = along_z
    line = np.empty(source_xyz.shape[2], np.float64)
    for i in range(out_xyz.shape[0]):
        for j in range(out_xyz.shape[1]):
            r00, r01 = source_xyz[low_x[i], low_y[j]], source_xyz[low_x[i], high_y[j]]
            r10, r11 = source_xyz[high_x[i], low_y[j]], source_xyz[high_x[i], high_y[j]]
            w00, w01 = weight_low_x[i] * weight_low_y[j], weight_low_x[i] * weight_high_y[j]
            w10, w11 = weight_high_x[i] * weight_low_y[j], weight_high_x[i] * weight_high_y[j]
            for k in range(line.size):
                line[k] = w00 * r00[k] + w01 * r01[k] + w10 * r10[k] + w11 * r11[k]
            row = out_xyz[i, j]
            for k in range(row.size):
                row[k] = weight_low_z[k] * line[low_z[k]] + weight_high_z[k] * line[high_z[k]]


@kernel
def sample_nearest(source_xyz: Any, out_xyz: Any, index_x: Any, index_y: Any, index_z: Any) -> None:
    """Fills `out_xyz` with the voxels at these indices, and with zero where one of them is negative."""
    for i in range(out_xyz.shape[0]):
        for j in range(out_xyz.shape[1]):
            row = out_xyz[i, j]
            if index_x[i] < 0 or index_y[j] < 0:
                row[:] = 0
                continue
            old = source_xyz[index_x[i], index_y[j]]
            for k in range(row.size):
                row[k] = old[index_z[k]] if index_z[k] >= 0 else 0
