"""Compiled loops that resample an array axis by axis or copy it to another memory order, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def resize(source: Any, along_x: Any, along_y: Any, along_z: Any, scale: Any, out: Any, steps: Any) -> None:
    """Fills a result whose voxels are weighted sums along each axis, plane by plane.

    Args:
        source: (c, x, y, z) of any memory order.
        along_x: two arrays, `AxisWeights.index` and `AxisWeights.weight`.
        along_y: likewise.
        along_z: likewise, (taps, nz): transposed, so that the loop along z runs along its memory.
        scale: (c, 2) float32: a voxel's value times the first plus the second.
        out: flat float32.
        steps: (5,) where in it voxel (0, 0, 0) of channel 0 lies, the steps of channels, x, y and z.
    """
    (index_x, weight_x), (index_y, weight_y), (index_z, weight_z) = along_x, along_y, along_z
    num_channels, _, side_y, side_z = source.shape
    plane = np.empty((side_y, side_z), np.float32)
    row, ended = np.empty(side_z, np.float32), np.empty(index_z.shape[1], np.float32)
    for c in range(num_channels):
        for i in range(len(index_x)):
            _sum_planes(source[c], index_x[i], weight_x[i], plane)
            for j in range(len(index_y)):
                _sum_rows(plane, index_y[j], weight_y[j], row)
                _sum_along(row, index_z, weight_z, scale[c, 0], scale[c, 1], ended)
                start = steps[0] + c * steps[1] + i * steps[2] + j * steps[3]
                if steps[4] == 1:
                    out[start : start + ended.size] = ended
                else:
                    for k in range(ended.size):
                        out[start + k * steps[4]] = ended[k]


@kernel
def _sum_planes(source: Any, index: Any, weight: Any, plane: Any) -> None:
    for j in range(plane.shape[0]):
        line = plane[j]
        first, factor = source[index[0], j], weight[0]
        for k in range(line.size):
            line[k] = np.float32(first[k]) * factor
        for t in range(1, index.size):
            if weight[t] != np.float32(0.0):
                further, factor = source[index[t], j], weight[t]
                for k in range(line.size):
                    line[k] += np.float32(further[k]) * factor


@kernel
def _sum_rows(plane: Any, index: Any, weight: Any, row: Any) -> None:
    first, factor = plane[index[0]], weight[0]
    for k in range(row.size):
        row[k] = first[k] * factor
    for t in range(1, index.size):
        if weight[t] != np.float32(0.0):
            further, factor = plane[index[t]], weight[t]
            for k in range(row.size):
                row[k] += further[k] * factor


@kernel
def _sum_along(row: Any, index: Any, weight: Any, factor: Any, shift: Any, out: Any) -> None:
    """Along the row itself; `index` and `weight` are (taps, n)."""
    first, share = index[0], weight[0]
    if len(index) == 1:
        for k in range(out.size):
            out[k] = row[np.uint32(first[k])] * share[k] * factor + shift
        return
    second, other = index[1], weight[1]
    if len(index) == 2:
        for k in range(out.size):
            out[k] = (row[np.uint32(first[k])] * share[k] + row[np.uint32(second[k])] * other[k]) * factor + shift
        return
    for k in range(out.size):
        out[k] = row[np.uint32(first[k])] * share[k]
    for t in range(1, len(index)):
        further, share = index[t], weight[t]
        for k in range(out.size):
            out[k] += row[np.uint32(further[k])] * share[k]
    for k in range(out.size):
        out[k] = out[k] * factor + shift


@kernel
def move(source: Any, target: Any) -> None:
    """Copies (c, x, y, z) where y is the fastest axis of the source and z that of the target.

    Tile by tile: each loaded cache line is used completely while it is in the processor's cache.
    """
    tile = 16
    num_channels, nx, ny, nz = target.shape
    for c in range(num_channels):
        for i in range(nx):
            plane, out = source[c, i], target[c, i]
            for j in range(0, ny, tile):
                for k in range(0, nz, tile):
                    for b in range(j, min(j + tile, ny)):
                        for d in range(k, min(k + tile, nz)):
                            out[b, d] = plane[b, d]
