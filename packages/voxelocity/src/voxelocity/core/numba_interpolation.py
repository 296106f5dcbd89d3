"""Compiled loops of interpolation that several stages use. Nothing here holds the GIL; import it only if Numba exists.

`interpolate` is for new places that form a grid with the array's axes. For any places, a row is computed in two steps:
`fetch` loads all neighbors, one by one, then `blend` sums them, as only the sums can use the processor's wide
registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel, pair_copier

_copy_pair = pair_copier()


@kernel
def interpolate(source: Any, out: Any, along_x: Any, along_y: Any, along_z: Any) -> None:
    """Fills `out` (x, y, z) float32 from `source` (x, y, z).

    Each `along` is three arrays of an axis of `out`: the two voxels of `source` around each place, and the float32
    weight of the second.
    """
    (below_x, above_x, weight_x), (below_y, above_y, weight_y), (below_z, above_z, weight_z) = along_x, along_y, along_z
    line = np.empty(source.shape[2], np.float32)
    for i in range(out.shape[0]):
        wx = weight_x[i]
        for j in range(out.shape[1]):
            wy = weight_y[j]
            r00, r01 = source[below_x[i], below_y[j]], source[below_x[i], above_y[j]]
            r10, r11 = source[above_x[i], below_y[j]], source[above_x[i], above_y[j]]
            for k in range(line.size):
                v00, v01 = np.float32(r00[k]), np.float32(r01[k])
                v10, v11 = np.float32(r10[k]), np.float32(r11[k])
                low, high = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
                line[k] = low + wx * (high - low)
            row = out[i, j]
            for k in range(row.size):
                low = line[below_z[k]]
                row[k] = low + weight_z[k] * (line[above_z[k]] - low)


@kernel
def fetch(line: Any, place: Any, step_x: Any, step_y: Any, corners: Any) -> None:
    """The eight neighbors of n voxels: (4, 2 * n), a row for each (x, y), in it the two along z side by side.

    Args:
        line: the flat array, in C order.
        place: (n,) uint32, the first neighbor of each voxel in it.
        step_x: from a voxel to the next along x.
        step_y: likewise.
        corners: filled; of the dtype of `line`.
    """
    # Unsigned, so that indices are not checked for negative values.
    jump_x, jump_y = np.uint64(step_x), np.uint64(step_y)
    for n in range(place.size):
        k, first = np.uint64(n), np.uint64(place[n])
        _copy_pair(line, first, corners, np.uint64(0), k)
        _copy_pair(line, first + jump_y, corners, np.uint64(1), k)
        _copy_pair(line, first + jump_x, corners, np.uint64(2), k)
        _copy_pair(line, first + jump_x + jump_y, corners, np.uint64(3), k)


@kernel
def blend(corners: Any, wx: Any, wy: Any, wz: Any, factor: Any, shift: Any, out: Any) -> None:
    """The trilinear sum of the neighbors from `fetch`, times a factor plus a shift; weights (n,) of the second ones."""
    c00, c01, c10, c11 = corners[0], corners[1], corners[2], corners[3]
    for k in range(out.size):
        low, high = np.uint64(2 * k), np.uint64(2 * k + 1)
        v00 = np.float32(c00[low]) + wz[k] * (np.float32(c00[high]) - np.float32(c00[low]))
        v01 = np.float32(c01[low]) + wz[k] * (np.float32(c01[high]) - np.float32(c01[low]))
        v10 = np.float32(c10[low]) + wz[k] * (np.float32(c10[high]) - np.float32(c10[low]))
        v11 = np.float32(c11[low]) + wz[k] * (np.float32(c11[high]) - np.float32(c11[low]))
        v0 = v00 + wy[k] * (v01 - v00)
        v1 = v10 + wy[k] * (v11 - v10)
        out[k] = (v0 + wx[k] * (v1 - v0)) * factor + shift


@kernel
def largest_share(labels: Any, shares: Any) -> Any:
    """Of eight labels and their shares, the label with the largest summed share; the smaller one of equals."""
    first = other = labels[0]
    for a in range(1, 8):
        if labels[a] != first:
            other = labels[a]
    first_share = other_share = np.float32(0.0)
    num = 0
    for a in range(8):
        if labels[a] == first:
            first_share += shares[a]
            num += 1
        elif labels[a] == other:
            other_share += shares[a]
            num += 1
    if num == 8:  # two classes, as almost everywhere on a border
        if first_share == other_share:
            return min(first, other)
        return first if first_share > other_share else other
    best, best_share = labels[0], np.float32(-1.0)
    for a in range(8):
        total = np.float32(0.0)
        for b in range(8):
            if labels[b] == labels[a]:
                total += shares[b]
        if total > best_share or (total == best_share and labels[a] < best):
            best, best_share = labels[a], total
    return best
