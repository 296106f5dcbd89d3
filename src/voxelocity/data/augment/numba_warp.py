"""Compiled loops that take a patch from a volume: one pass for crop, warp, label, decoding and brightness.

Nothing here holds the GIL.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel


@inlined
def _vote(label: Any, place: Any, step_x: Any, step_y: Any, wx: Any, wy: Any, wz: Any) -> Any:
    """The class of the largest summed weight among the eight neighbours; the smaller index where two are equal."""
    next_z = np.uint64(1)
    l0, l1 = label[place], label[place + next_z]
    l2, l3 = label[place + step_y], label[place + step_y + next_z]
    place += step_x
    l4, l5 = label[place], label[place + next_z]
    l6, l7 = label[place + step_y], label[place + step_y + next_z]
    if (l0 ^ l1) | (l0 ^ l2) | (l0 ^ l3) | (l0 ^ l4) | (l0 ^ l5) | (l0 ^ l6) | (l0 ^ l7) == 0:
        return l0
    one = np.float32(1.0)
    ux, uy, uz = one - wx, one - wy, one - wz
    labels = (l0, l1, l2, l3, l4, l5, l6, l7)
    shares = (
        ux * uy * uz,
        ux * uy * wz,
        ux * wy * uz,
        ux * wy * wz,
        wx * uy * uz,
        wx * uy * wz,
        wx * wy * uz,
        wx * wy * wz,
    )
    return _largest(labels, shares)


@kernel
def _largest(labels: Any, shares: Any) -> Any:
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
    if num == 8:  # two classes, as nearly everywhere on a border
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


@kernel
def warp(
    image: Any,
    image_steps: Any,
    label: Any,
    label_steps: Any,
    shape: Any,
    origin: Any,
    step: Any,
    control: Any,
    weights_x: Any,
    weights_y: Any,
    first_z: Any,
    weights_z: Any,
    scale: Any,
    votes: Any,
    out_image: Any,
    out_label: Any,
) -> None:
    """Fills a patch from a box of stored voxels.

    Args:
        image: the box's stored voxels as one flat array; a voxel lies at `c * image_steps[0] + x * image_steps[1] + y *
            image_steps[2] + z`.
        image_steps: (3,) int64.
        label: as `image`, flat uint8.
        label_steps: (2,) int64, along x and y.
        shape: (3,) int64 of the box. Beyond it lies intensity 0 and class 0.
        origin: (3,) float64, where patch voxel (0, 0, 0) is found in the box.
        step: (3, 3) float64, column j the step along patch axis j.
        control: (3, gx, gy, gz) float32 shifts in the box of the control points, size 0 for none.
        weights_x: (nx, gx) float32, `spline.weights`.
        weights_y: (ny, gy) float32.
        first_z: (nz,) int32, `spline.four_weights`.
        weights_z: (nz, 4) float32.
        scale: (c, 3) float32: an intensity is `stored * scale[0] + scale[1]`, and everywhere plus `scale[2]`.
        votes: bool; False takes the nearest voxel's label.
        out_image: (c, nx, ny, nz) float32, in C order.
        out_label: (nx, ny, nz) uint8, in C order.
    """
    num_channels, nx, ny, nz = out_image.shape
    size_x, size_y, size_z = shape[0], shape[1], shape[2]
    gx, gy, gz = control.shape[1], control.shape[2], control.shape[3]
    is_elastic = gx > 0
    plane, line = np.empty((3, gy, gz), np.float32), np.empty((3, gz), np.float32)
    px, py, pz = np.empty(nz, np.float32), np.empty(nz, np.float32), np.empty(nz, np.float32)
    # Places are float32: this much inside the border, a rounded one never has a neighbour beyond it.
    zero = np.float32(0.0)
    inner_x = np.float32(size_x - 1.0 - 1e-3 - 1e-6 * size_x)
    inner_y = np.float32(size_y - 1.0 - 1e-3 - 1e-6 * size_y)
    inner_z = np.float32(size_z - 1.0 - 1e-3 - 1e-6 * size_z)
    label_x, label_y = label_steps[0], label_steps[1]
    one = np.uint64(1)
    for i in range(nx):
        if is_elastic:
            plane[:] = zero
            for g in range(gx):
                if weights_x[i, g] != zero:
                    for axis in range(3):
                        for h in range(gy):
                            for q in range(gz):
                                plane[axis, h, q] += weights_x[i, g] * control[axis, g, h, q]
        for j in range(ny):
            x0 = np.float32(origin[0] + i * step[0, 0] + j * step[0, 1])
            y0 = np.float32(origin[1] + i * step[1, 0] + j * step[1, 1])
            z0 = np.float32(origin[2] + i * step[2, 0] + j * step[2, 1])
            sx, sy, sz = np.float32(step[0, 2]), np.float32(step[1, 2]), np.float32(step[2, 2])
            for k in range(nz):
                along = np.float32(k)
                px[k] = x0 + along * sx
                py[k] = y0 + along * sy
                pz[k] = z0 + along * sz
            if is_elastic:
                line[:] = zero
                for h in range(gy):
                    if weights_y[j, h] != zero:
                        for axis in range(3):
                            for q in range(gz):
                                line[axis, q] += weights_y[j, h] * plane[axis, h, q]
                for k in range(nz):
                    q = first_z[k]
                    w0, w1, w2, w3 = weights_z[k, 0], weights_z[k, 1], weights_z[k, 2], weights_z[k, 3]
                    px[k] += w0 * line[0, q] + w1 * line[0, q + 1] + w2 * line[0, q + 2] + w3 * line[0, q + 3]
                    py[k] += w0 * line[1, q] + w1 * line[1, q + 1] + w2 * line[1, q + 2] + w3 * line[1, q + 3]
                    pz[k] += w0 * line[2, q] + w1 * line[2, q + 1] + w2 * line[2, q + 2] + w3 * line[2, q + 3]
            start, stop, num_inside = nz, 0, 0
            for k in range(nz):
                if (
                    px[k] >= zero
                    and py[k] >= zero
                    and pz[k] >= zero
                    and px[k] <= inner_x
                    and py[k] <= inner_y
                    and pz[k] <= inner_z
                ):
                    start = min(start, k)
                    stop = k + 1
                    num_inside += 1
            if num_inside < stop - start:
                # An elastic row that leaves the box and comes back: none of it is taken as inside.
                start = stop
            for c in range(num_channels):
                offset = c * image_steps[0]
                step_x, step_y = image_steps[1], image_steps[2]
                # Unsigned, so that no index is checked for being negative.
                jump_c, jump_x, jump_y = np.uint64(offset), np.uint64(step_x), np.uint64(step_y)
                a, b, fill = scale[c, 0], scale[c, 1], scale[c, 2]
                shifted = b + fill
                for k in range(start, stop):
                    x, y, z = px[k], py[k], pz[k]
                    ix, iy, iz = np.int32(x), np.int32(y), np.int32(z)
                    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
                    place = jump_c + np.uint64(ix) * jump_x + np.uint64(iy) * jump_y + np.uint64(iz)
                    low, high = np.float32(image[place]), np.float32(image[place + one])
                    v00 = low + wz * (high - low)
                    low, high = np.float32(image[place + jump_y]), np.float32(image[place + jump_y + one])
                    v01 = low + wz * (high - low)
                    place += jump_x
                    low, high = np.float32(image[place]), np.float32(image[place + one])
                    v10 = low + wz * (high - low)
                    low, high = np.float32(image[place + jump_y]), np.float32(image[place + jump_y + one])
                    v11 = low + wz * (high - low)
                    v0 = v00 + wy * (v01 - v00)
                    v1 = v10 + wy * (v11 - v10)
                    out_image[c, i, j, k] = (v0 + wx * (v1 - v0)) * a + shifted
                for part in range(2):
                    first, last = (0, min(start, stop)) if part == 0 else (max(min(start, stop), stop), nz)
                    for k in range(first, last):
                        out_image[c, i, j, k] = (
                            _image_at(image, offset, step_x, step_y, size_x, size_y, size_z, px[k], py[k], pz[k], a, b)
                            + fill
                        )
            line_label = out_label[i, j]
            half = np.float32(0.5)
            jump_x, jump_y = np.uint64(label_x), np.uint64(label_y)
            if votes:
                for k in range(start, stop):
                    x, y, z = px[k], py[k], pz[k]
                    ix, iy, iz = np.int32(x), np.int32(y), np.int32(z)
                    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
                    place = np.uint64(ix) * jump_x + np.uint64(iy) * jump_y + np.uint64(iz)
                    line_label[k] = _vote(label, place, jump_x, jump_y, wx, wy, wz)
            else:
                for k in range(start, stop):
                    x, y, z = np.int32(px[k] + half), np.int32(py[k] + half), np.int32(pz[k] + half)
                    line_label[k] = label[np.uint64(x) * jump_x + np.uint64(y) * jump_y + np.uint64(z)]
            for part in range(2):
                first, last = (0, min(start, stop)) if part == 0 else (max(min(start, stop), stop), nz)
                for k in range(first, last):
                    line_label[k] = _label_at(
                        label, label_x, label_y, size_x, size_y, size_z, px[k], py[k], pz[k], votes
                    )


@kernel
def _image_at(
    image: Any,
    offset: Any,
    step_x: Any,
    step_y: Any,
    size_x: Any,
    size_y: Any,
    size_z: Any,
    x: Any,
    y: Any,
    z: Any,
    a: Any,
    b: Any,
) -> Any:
    """Intensity at any place, near the border or beyond it."""
    total = np.float32(0.0)
    fx, fy, fz = math.floor(x), math.floor(y), math.floor(z)
    ix, iy, iz = int(fx), int(fy), int(fz)
    if ix < -1 or iy < -1 or iz < -1 or ix >= size_x or iy >= size_y or iz >= size_z:
        return total
    one = np.float32(1.0)
    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
    for corner in range(8):
        dx, dy, dz = corner >> 2, (corner >> 1) & 1, corner & 1
        qx, qy, qz = ix + dx, iy + dy, iz + dz
        if qx >= 0 and qy >= 0 and qz >= 0 and qx < size_x and qy < size_y and qz < size_z:
            share = (wx if dx else one - wx) * (wy if dy else one - wy) * (wz if dz else one - wz)
            total += share * (np.float32(image[offset + qx * step_x + qy * step_y + qz]) * a + b)
    return total


@kernel
def _label_at(
    label: Any, step_x: Any, step_y: Any, size_x: Any, size_y: Any, size_z: Any, x: Any, y: Any, z: Any, votes: Any
) -> Any:
    """Class at any place, near the border or beyond it, where all is of class 0."""
    half, nothing = np.float32(0.5 if not votes else 0.0), np.uint8(0)
    ix, iy, iz = math.floor(x + half), math.floor(y + half), math.floor(z + half)
    if not votes:
        if ix < 0 or iy < 0 or iz < 0 or ix >= size_x or iy >= size_y or iz >= size_z:
            return nothing
        return label[ix * step_x + iy * step_y + iz]
    if ix < -1 or iy < -1 or iz < -1 or ix >= size_x or iy >= size_y or iz >= size_z:
        return nothing
    one = np.float32(1.0)
    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
    labels, shares = np.zeros(8, np.uint8), np.zeros(8, np.float32)
    for corner in range(8):
        dx, dy, dz = corner >> 2, (corner >> 1) & 1, corner & 1
        qx, qy, qz = ix + dx, iy + dy, iz + dz
        shares[corner] = (wx if dx else one - wx) * (wy if dy else one - wy) * (wz if dz else one - wz)
        if qx >= 0 and qy >= 0 and qz >= 0 and qx < size_x and qy < size_y and qz < size_z:
            labels[corner] = label[qx * step_x + qy * step_y + qz]
    return _largest(labels, shares)


@kernel
def crop(
    image: Any,
    image_steps: Any,
    label: Any,
    label_steps: Any,
    start: Any,
    stop: Any,
    flips: Any,
    scale: Any,
    out_image: Any,
    out_label: Any,
) -> None:
    """Fills a patch whose voxels are those of a box, flipped or not.

    Args:
        image: as in `warp`.
        image_steps: as in `warp`.
        label: as in `warp`.
        label_steps: as in `warp`.
        start: (3,) int64, where the box begins in the patch before any flip. Beyond it lies intensity 0 and class 0.
        stop: (3,) int64, where it ends.
        flips: (3,) bool.
        scale: as in `warp`.
        out_image: as in `warp`.
        out_label: as in `warp`.
    """
    num_channels, nx, ny, nz = out_image.shape
    z0, z1 = start[2], stop[2]
    for i in range(nx):
        x = nx - 1 - i if flips[0] else i
        for j in range(ny):
            y = ny - 1 - j if flips[1] else j
            is_inside = start[0] <= x < stop[0] and start[1] <= y < stop[1]
            first, last = (z0, z1) if is_inside else (0, 0)
            if flips[2]:
                first, last = nz - last, nz - first
            num = last - first
            for c in range(num_channels):
                row = out_image[c, i, j]
                row[:first] = scale[c, 2]
                row[last:] = scale[c, 2]
                place = c * image_steps[0] + (x - start[0]) * image_steps[1] + (y - start[1]) * image_steps[2]
                if num > 0:
                    _decode_line(image[place : place + num], row[first:last], scale[c], flips[2])
            label_row = out_label[i, j]
            label_row[:first] = 0
            label_row[last:] = 0
            place = (x - start[0]) * label_steps[0] + (y - start[1]) * label_steps[1]
            if num > 0:
                _copy_line(label[place : place + num], label_row[first:last], flips[2])


# Lines as slices of their own: an index counted from zero needs no check for being negative, so the loops vectorise.
@kernel
def _decode_line(stored: Any, line: Any, scale: Any, is_flipped: Any) -> None:
    factor, shift = scale[0], scale[1] + scale[2]
    if is_flipped:
        last = np.uint64(line.size - 1)
        for k in range(line.size):
            line[k] = np.float32(stored[last - np.uint64(k)]) * factor + shift
    else:
        for k in range(line.size):
            line[k] = np.float32(stored[k]) * factor + shift


@kernel
def _copy_line(stored: Any, line: Any, is_flipped: Any) -> None:
    if is_flipped:
        last = np.uint64(line.size - 1)
        for k in range(line.size):
            line[k] = stored[last - np.uint64(k)]
    else:
        for k in range(line.size):
            line[k] = stored[k]
