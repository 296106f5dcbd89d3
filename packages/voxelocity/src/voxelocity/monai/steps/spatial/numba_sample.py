"""Compiled loops of a warp: from a box of the array, with a ring of voxels from beyond it, to the result.

Nothing here holds the GIL. The result is filled row by row: the coordinates of its voxels with the roundings that
`SamplingGrid` requires, then the voxels of the box, by one load for two neighbors, and their sums. With the ring and
positions limited to it, no voxel needs a test of whether its neighbors lie inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, fused_multiply_add, kernel, pair_copier

_copy_pair, _fma = pair_copier(), fused_multiply_add()

ZEROS, BORDER, REFLECTION = 0, 1, 2


@exact_kernel
def sample(
    line_0: Any,
    line_1: Any,
    line_2: Any,
    theta: Any,
    order: Any,
    is_fused: Any,
    scale: Any,
    shifts: Any,
    sides: Any,
    align_corners: Any,
    is_once: Any,
    beyond: Any,
    first: Any,
    points: Any,
    interpolated: Any,
    nearest: Any,
) -> None:
    """Fills up to two results at the same positions: one interpolated, one from the nearest voxels.

    The result's axes are 0, 1 and 2 in its memory order.

    Args:
        line_0: (n0,) float32, `SamplingGrid.lines` of axis 0, and so on.
        line_1: (n1,) float32.
        line_2: (n2,) float32.
        theta: (3, 4) float32, columns of the result's axes and 1.
        order: (4,) which columns are summed first.
        is_fused: as `SamplingGrid.is_fused`.
        scale: (3,) of the dtype of `points`, or size 0.
        shifts: (3, n0, n1, n2) float32 of the columns of theta, or size 0.
        sides: (3,) of the array, voxels.
        align_corners: as `SamplingGrid.align_corners`.
        is_once: as `sampler_is_fused`.
        beyond: ZEROS, BORDER or REFLECTION.
        first: (3,) the voxel of the array at which the box begins, without its ring.
        points: (3, n2) scratch, float64 or float32, for all computations after the sums.
        interpolated: four arrays: the box (c, bx, by, bz) in C order, with its ring, fewer than 2**31 voxels, c = 0 for
            none; its scale (c, 2) float32, a voxel's value times the first plus the second; the result, flat float32;
            and its steps (5,): where voxel (0, 0, 0) of channel 0 lies, the steps of channels and axes 0, 1, 2.
        nearest: likewise.
    """
    linear, linear_scale, linear_out, linear_steps = interpolated
    near, near_scale, near_out, near_steps = nearest
    n2 = line_2.size
    coordinates, moved = np.empty(n2, np.float32), np.empty((3, n2), np.float32)
    place, row = np.empty(n2, np.uint32), np.empty(n2, np.float32)
    weights = np.empty((3, n2), np.float32)
    corners = np.empty((4, 2 * n2), linear.dtype)
    at = np.ones(4, np.float32)
    for i in range(line_0.size):
        for j in range(line_1.size):
            at[0], at[1] = line_0[i], line_1[j]
            if shifts.size > 0:
                _shift(at, line_2, shifts, i, j, moved)
            for axis in range(3):
                if shifts.size > 0:
                    _sum_moved(theta[axis], moved, order, is_fused, coordinates)
                else:
                    _sum_row(theta[axis], at, line_2, order, is_fused, coordinates)
                _to_voxels(coordinates, scale, axis, sides[axis], align_corners, is_once, points[axis])
                _hold(points[axis], sides[axis], align_corners, is_once, beyond)
            if linear.shape[0] > 0:
                _between(points, first, linear.shape, place, weights)
                start = linear_steps[0] + i * linear_steps[2] + j * linear_steps[3]
                for c in range(linear.shape[0]):
                    box = linear[c].reshape(-1)
                    fetch(box, place, linear.shape[2] * linear.shape[3], linear.shape[3], corners)
                    blend(corners, weights[0], weights[1], weights[2], linear_scale[c, 0], linear_scale[c, 1], row)
                    _store(row, linear_out, start + c * linear_steps[1], linear_steps[4])
            if near.shape[0] > 0:
                _round(points, first, near.shape, place)
                start = near_steps[0] + i * near_steps[2] + j * near_steps[3]
                for c in range(near.shape[0]):
                    _take(near[c].reshape(-1), place, near_scale[c, 0], near_scale[c, 1], row)
                    _store(row, near_out, start + c * near_steps[1], near_steps[4])


@exact_kernel
def _sum_row(factors: Any, at: Any, line: Any, order: Any, is_fused: Any, out: Any) -> None:
    """Sums of a row whose voxels differ only along the last axis."""
    total, is_begun = np.float32(0.0), False
    for n in range(4):
        axis = order[n]
        factor = factors[axis]
        if axis == 2:
            is_begun = True
            _add_products(factor, line, total, is_fused, out)
        elif is_begun:
            _add_product(factor, at[axis], is_fused, out)
        else:
            total = _fma(factor, at[axis], total) if is_fused else total + factor * at[axis]


@exact_kernel
def _add_products(factor: Any, line: Any, total: Any, is_fused: Any, out: Any) -> None:
    if is_fused:
        for k in range(out.size):
            out[k] = _fma(factor, line[k], total)
    else:
        for k in range(out.size):
            out[k] = total + factor * line[k]


@exact_kernel
def _add_product(factor: Any, value: Any, is_fused: Any, out: Any) -> None:
    if is_fused:
        for k in range(out.size):
            out[k] = _fma(factor, value, out[k])
    else:
        product = factor * value
        for k in range(out.size):
            out[k] = out[k] + product


@exact_kernel
def _shift(at: Any, line: Any, shifts: Any, i: Any, j: Any, moved: Any) -> None:
    """The coordinates of a row with its shifts."""
    for axis in range(3):
        shift, row = shifts[axis, i, j], moved[axis]
        if axis < 2:
            value = np.float64(at[axis])
            for k in range(row.size):
                row[k] = np.float32(value + np.float64(shift[k]))
        else:
            for k in range(row.size):
                row[k] = np.float32(np.float64(line[k]) + np.float64(shift[k]))


@exact_kernel
def _sum_moved(factors: Any, moved: Any, order: Any, is_fused: Any, out: Any) -> None:
    """Sums of a row of shifted coordinates."""
    a, b, c = factors[order[0]], factors[order[1]], factors[order[2]]
    x, y, z, last = moved[order[0]], moved[order[1]], moved[order[2]], factors[3]
    if is_fused:
        for k in range(out.size):
            out[k] = _fma(c, z[k], _fma(b, y[k], a * x[k])) + last
    else:
        for k in range(out.size):
            out[k] = ((a * x[k] + b * y[k]) + c * z[k]) + last


@exact_kernel
def _to_voxels(coordinates: Any, scale: Any, axis: Any, side: Any, align_corners: Any, is_once: Any, out: Any) -> None:
    """Positions in voxels, by torch's `grid_sample`: float64 or float32 as `out` is."""
    kind = out.dtype.type
    one, half, num = kind(1.0), kind(0.5), kind(side)
    factor = scale[axis] if scale.size > 0 else one
    if align_corners:
        num = kind(side - 1)
        for k in range(out.size):
            out[k] = (kind(coordinates[k]) * factor + one) * half * num
    elif is_once:
        for k in range(out.size):
            out[k] = _fma(kind(coordinates[k]) * factor + one, num, -one) * half
    else:
        for k in range(out.size):
            out[k] = ((kind(coordinates[k]) * factor + one) * num - one) * half


@exact_kernel
def _hold(row: Any, side: Any, align_corners: Any, is_once: Any, beyond: Any) -> None:
    """Maps positions beyond the array to the voxels seen there, and limits positions to its ring."""
    kind = row.dtype.type
    low, high = kind(0.0), kind(side - 1)
    if beyond == REFLECTION:
        num_beyond = np.int32(0)
        for k in range(row.size):
            num_beyond += np.int32((row[k] < low) | (row[k] > high))
        # A place inside that was rounded once may move when torch reflects it: it adds and subtracts half a voxel.
        if num_beyond > 0 or is_once:
            _reflect(row, side, align_corners)
    if beyond == ZEROS:
        low, high = kind(-1.0), kind(side)
    for k in range(row.size):
        row[k] = min(max(row[k], low), high)


@exact_kernel
def _reflect(row: Any, side: Any, align_corners: Any) -> None:
    """Mirror images about the faces of the outermost voxels or their centers, in torch's order of operations."""
    kind = row.dtype.type
    low, span = (kind(0.0), kind(side - 1)) if align_corners else (kind(-0.5), kind(side))
    if span == kind(0.0):
        row[:] = low
        return
    for k in range(row.size):
        far = abs(row[k] - low)
        flips = np.floor(far / span)
        rest = far - flips * span
        if rest < kind(0.0):  # the quotient was rounded up to a whole number
            rest += span
        if flips % kind(2.0) == kind(0.0):
            row[k] = rest + low
        else:
            row[k] = span - rest + low


@kernel
def _between(points: Any, first: Any, shape: Any, place: Any, weights: Any) -> None:
    """For each voxel of a row, the first of its eight neighbors in the box and the weights of those behind it."""
    step_x, step_y = np.int32(shape[2] * shape[3]), np.int32(shape[3])
    px, py, pz = points[0], points[1], points[2]
    wx, wy, wz = weights[0], weights[1], weights[2]
    # A place lies in the array or its ring, which begins at -1, so the integer part is the floor.
    fx, fy, fz = np.int32(first[0]), np.int32(first[1]), np.int32(first[2])
    kind = points.dtype.type
    one = kind(1.0)
    for k in range(place.size):
        x, y, z = np.int32(px[k] + one), np.int32(py[k] + one), np.int32(pz[k] + one)
        wx[k] = np.float32(px[k] - kind(x - np.int32(1)))
        wy[k] = np.float32(py[k] - kind(y - np.int32(1)))
        wz[k] = np.float32(pz[k] - kind(z - np.int32(1)))
        place[k] = np.uint32((x - fx) * step_x + (y - fy) * step_y + (z - fz))


@exact_kernel
def _round(points: Any, first: Any, shape: Any, place: Any) -> None:
    """For each voxel of a row, the nearest one in the box; halfway between two, the even one."""
    step_x, step_y = np.int32(shape[2] * shape[3]), np.int32(shape[3])
    px, py, pz = points[0], points[1], points[2]
    fx, fy, fz = np.int32(first[0] - 1), np.int32(first[1] - 1), np.int32(first[2] - 1)
    # Numbers of this size have no fraction: adding it rounds to the nearest, halves to even. Exact for float32 too.
    big = 6755399441055744.0
    for k in range(place.size):
        x = np.int32((np.float64(px[k]) + big) - big) - fx
        y = np.int32((np.float64(py[k]) + big) - big) - fy
        z = np.int32((np.float64(pz[k]) + big) - big) - fz
        place[k] = np.uint32(x * step_x + y * step_y + z)


@kernel
def _take(line: Any, place: Any, factor: Any, shift: Any, out: Any) -> None:
    for k in range(out.size):
        out[k] = np.float32(line[np.uint64(place[k])]) * factor + shift


@kernel
def _store(row: Any, out: Any, start: Any, step: Any) -> None:
    if step == 1:
        line = out[start : start + row.size]
        for k in range(row.size):
            line[k] = row[k]
    else:
        for k in range(row.size):
            out[start + k * step] = row[k]


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
