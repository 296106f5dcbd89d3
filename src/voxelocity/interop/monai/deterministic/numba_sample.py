"""Taking samples of one channel on an axis-aligned grid, compiled; nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def sample_linear(
    source_xyz: Any,
    out_xyz: Any,
    low_x: Any,
    high_x: Any,
    weight_low_x: Any,
    weight_high_x: Any,
    low_y: Any,
    high_y: Any,
    weight_low_y: Any,
    weight_high_y: Any,
    low_z: Any,
    high_z: Any,
    weight_low_z: Any,
    weight_high_z: Any,
) -> None:
    """Fills `out_xyz` with the weighted means of eight voxels, summed in float64 and rounded once."""
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
