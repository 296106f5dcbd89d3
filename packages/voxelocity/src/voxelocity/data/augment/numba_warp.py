"""Compiled loops that take a patch from its volume, cropped or warped: one pass for label, decoding and brightness too.

Nothing here holds the GIL. A warped patch is filled plane by plane: first the places of the plane's voxels, then its
channels one after the other, then its label.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxelocity.core.jit import kernel
from voxelocity.core.numba_interpolation import blend, fetch, largest_share


@kernel
def warp(
    image: Any,
    label: Any,
    origin: Any,
    step: Any,
    control: Any,
    spline: Any,
    scale: Any,
    votes: Any,
    out_image: Any,
    out_label: Any,
) -> None:
    """Fills a patch from a box of stored voxels.

    Args:
        image: (c, bx, by, bz) stored voxels in C order, fewer than 2**31 per channel. Beyond the box are intensity 0
            and class 0.
        label: (bx, by, bz) uint8 in C order.
        origin: (3,) float64, place of patch voxel (0, 0, 0) in the box.
        step: (3, 3) float64, column j the step along patch axis j.
        control: (3, gx, gy, gz) float32 shifts in the box of the control points, size 0 for none.
        spline: four arrays: `params.spline_weights` (nx, gx) and (ny, gy), and `params.four_weights` of z, (nz,) int32
            and (nz, 4).
        scale: (c, 3) float32: an intensity is `stored * scale[0] + scale[1]`, and everywhere plus `scale[2]`.
        votes: bool; False takes the nearest voxel's label.
        out_image: (c, nx, ny, nz) float32, in C order.
        out_label: (nx, ny, nz) uint8, in C order.
    """
    weights_x, weights_y, first_z, weights_z = spline
    num_channels, nx, ny, nz = out_image.shape
    is_elastic = control.size > 0
    shifts = np.zeros((3, control.shape[2], control.shape[3]), np.float32)
    points, weights = np.empty((3, ny, nz), np.float32), np.empty((3, ny, nz), np.float32)
    place, parts = np.empty((ny, nz), np.uint32), np.empty((ny, 4), np.int64)
    for i in range(nx):
        _find_points(i, origin, step, points)
        if is_elastic:
            _sum_planes(control, weights_x[i], shifts)
            _shift_points(shifts, weights_y, first_z, weights_z, points)
        _find_neighbors(points, label.shape, place, weights, parts)
        for c in range(num_channels):
            _fill_image(image[c], points, place, weights, parts, scale[c], out_image[c, i])
        _fill_label(label, points, place, weights, parts, votes, out_label[i])


@kernel
def _find_points(i: Any, origin: Any, step: Any, points: Any) -> None:
    """Where the voxels of plane `i` lie in the box: (3, ny, nz)."""
    for axis in range(3):
        along_z = np.float32(step[axis, 2])
        for j in range(points.shape[1]):
            first = np.float32(origin[axis] + i * step[axis, 0] + j * step[axis, 1])
            row = points[axis, j]
            for k in range(row.size):
                row[k] = first + np.float32(k) * along_z


@kernel
def _sum_planes(control: Any, weights: Any, shifts: Any) -> None:
    """The control points' shifts at one x: (3, gx, gy, gz) to (3, gy, gz)."""
    shifts[:] = np.float32(0.0)
    for g in range(control.shape[1]):
        if weights[g] != np.float32(0.0):
            for axis in range(3):
                for h in range(control.shape[2]):
                    for q in range(control.shape[3]):
                        shifts[axis, h, q] += weights[g] * control[axis, g, h, q]


@kernel
def _shift_points(shifts: Any, weights_y: Any, first_z: Any, weights_z: Any, points: Any) -> None:
    """Adds the shifts at one x, (3, gy, gz), to the places of its voxels, (3, ny, nz)."""
    line = np.empty(shifts.shape[2], np.float32)
    for axis in range(3):
        for j in range(points.shape[1]):
            line[:] = np.float32(0.0)
            for h in range(shifts.shape[1]):
                if weights_y[j, h] != np.float32(0.0):
                    for q in range(line.size):
                        line[q] += weights_y[j, h] * shifts[axis, h, q]
            row = points[axis, j]
            for k in range(row.size):
                q = first_z[k]
                row[k] += weights_z[k, 0] * line[q] + weights_z[k, 1] * line[q + 1]
                row[k] += weights_z[k, 2] * line[q + 2] + weights_z[k, 3] * line[q + 3]


@kernel
def _find_neighbors(points: Any, shape: Any, place: Any, weights: Any, parts: Any) -> None:
    """For each voxel, the first of its eight neighbors and the weights of those behind it along each axis.

    Args:
        points: (3, ny, nz) in the box.
        shape: of the box.
        place: (ny, nz), counted from the box's first voxel. Valid, as are the weights, where all neighbors lie inside.
        weights: (3, ny, nz).
        parts: (ny, 4): first voxel of a row with a neighbor in the box, first and last (excluded) with all neighbors in
            it, and last (excluded) with any.
    """
    step_x, step_y = np.int32(shape[1] * shape[2]), np.int32(shape[2])
    for j in range(points.shape[1]):
        px, py, pz = points[0, j], points[1, j], points[2, j]
        first, start, stop, last = _parts_of(px, py, pz, shape)
        parts[j, 0], parts[j, 1], parts[j, 2], parts[j, 3] = first, start, stop, last
        ax, ay, az, to = px[start:stop], py[start:stop], pz[start:stop], place[j, start:stop]
        wx, wy, wz = weights[0, j, start:stop], weights[1, j, start:stop], weights[2, j, start:stop]
        for k in range(to.size):
            x, y, z = np.int32(ax[k]), np.int32(ay[k]), np.int32(az[k])
            wx[k], wy[k], wz[k] = ax[k] - np.float32(x), ay[k] - np.float32(y), az[k] - np.float32(z)
            to[k] = np.uint32(x * step_x + y * step_y + z)


@kernel
def _parts_of(px: Any, py: Any, pz: Any, shape: Any) -> Any:
    """The four numbers of a row of `parts`."""
    size, num_inside = px.size, np.int32(0)
    end_x, end_y, end_z = np.float32(shape[0]), np.float32(shape[1]), np.float32(shape[2])
    # Places are float32: this far inside the border, a rounded one never has a neighbor beyond it.
    last_x = np.float32(shape[0] - 1.0 - 1e-3 - 1e-6 * shape[0])
    last_y = np.float32(shape[1] - 1.0 - 1e-3 - 1e-6 * shape[1])
    last_z = np.float32(shape[2] - 1.0 - 1e-3 - 1e-6 * shape[2])
    for k in range(size):
        num_inside += np.int32(_is_inside(px[k], py[k], pz[k], last_x, last_y, last_z))
    if num_inside == size:
        return 0, 0, size, size
    first, last = 0, size
    while first < last and not _sees(px[first], py[first], pz[first], end_x, end_y, end_z):
        first += 1
    while first < last and not _sees(px[last - 1], py[last - 1], pz[last - 1], end_x, end_y, end_z):
        last -= 1
    start, stop = first, last
    while start < stop and not _is_inside(px[start], py[start], pz[start], last_x, last_y, last_z):
        start += 1
    while start < stop and not _is_inside(px[stop - 1], py[stop - 1], pz[stop - 1], last_x, last_y, last_z):
        stop -= 1
    # An elastic row leaves the box and comes back: none of it counts as inside.
    return (first, start, stop, last) if num_inside == stop - start else (first, last, last, last)


@kernel
def _sees(x: Any, y: Any, z: Any, end_x: Any, end_y: Any, end_z: Any) -> Any:
    """Whether any of the eight neighbors lies in the box."""
    one = np.float32(1.0)
    return x > -one and y > -one and z > -one and x < end_x and y < end_y and z < end_z


@kernel
def _is_inside(x: Any, y: Any, z: Any, last_x: Any, last_y: Any, last_z: Any) -> Any:
    """Whether all eight neighbors lie in the box."""
    zero = np.float32(0.0)
    return (x >= zero) & (y >= zero) & (z >= zero) & (x <= last_x) & (y <= last_y) & (z <= last_z)


@kernel
def _fill_image(channel: Any, points: Any, place: Any, weights: Any, parts: Any, scale: Any, out: Any) -> None:
    """A plane of one channel."""
    ny, nz = out.shape
    line, step_x, step_y = channel.reshape(-1), channel.shape[1] * channel.shape[2], channel.shape[2]
    corners = np.empty((4, 2 * nz), channel.dtype)
    factor, shift, everywhere = scale[0], scale[1], scale[2]
    for j in range(ny):
        first, start, stop, last = parts[j, 0], parts[j, 1], parts[j, 2], parts[j, 3]
        if start < stop:
            fetch(line, place[j, start:stop], step_x, step_y, corners)
            wx, wy, wz = weights[0, j, start:stop], weights[1, j, start:stop], weights[2, j, start:stop]
            blend(corners, wx, wy, wz, factor, shift + everywhere, out[j, start:stop])
        out[j, :first] = everywhere
        out[j, last:] = everywhere
        for part in range(2):
            for k in range(first if part == 0 else stop, start if part == 0 else last):
                value = _image_at(channel, points[0, j, k], points[1, j, k], points[2, j, k], factor, shift)
                out[j, k] = value + everywhere


@kernel
def _fill_label(label: Any, points: Any, place: Any, weights: Any, parts: Any, votes: Any, out: Any) -> None:
    """A plane of the label."""
    ny, nz = out.shape
    line, step_x, step_y = label.reshape(-1), label.shape[1] * label.shape[2], label.shape[2]
    corners, is_mixed = np.empty((4, 2 * nz), np.uint8), np.empty(nz, np.uint8)
    nearest = np.empty(nz, np.uint32)
    for j in range(ny):
        first, start, stop, last = parts[j, 0], parts[j, 1], parts[j, 2], parts[j, 3]
        if start < stop:
            at = place[j, start:stop]
            wx, wy, wz = weights[0, j, start:stop], weights[1, j, start:stop], weights[2, j, start:stop]
            if votes:
                fetch(line, at, step_x, step_y, corners)
                _vote(corners, wx, wy, wz, is_mixed, out[j, start:stop])
            else:
                _take_nearest(line, at, wx, wy, wz, step_x, step_y, nearest, out[j, start:stop])
        out[j, :first] = np.uint8(0)
        out[j, last:] = np.uint8(0)
        for part in range(2):
            for k in range(first if part == 0 else stop, start if part == 0 else last):
                out[j, k] = _label_at(label, points[0, j, k], points[1, j, k], points[2, j, k], votes)


@kernel
def _take_nearest(
    line: Any, place: Any, wx: Any, wy: Any, wz: Any, step_x: Any, step_y: Any, nearest: Any, out: Any
) -> None:
    half, jump_x, jump_y = np.float32(0.5), np.uint32(step_x), np.uint32(step_y)
    for k in range(out.size):
        x, y, z = np.uint32(wx[k] >= half), np.uint32(wy[k] >= half), np.uint32(wz[k] >= half)
        nearest[k] = np.uint32(place[k] + x * jump_x + y * jump_y + z)
    for k in range(out.size):
        out[k] = line[np.uint64(nearest[k])]


@kernel
def _vote(corners: Any, wx: Any, wy: Any, wz: Any, is_mixed: Any, out: Any) -> None:
    """The class with the largest summed weight among the eight neighbors; the smaller index of equals."""
    c00, c01, c10, c11 = corners[0], corners[1], corners[2], corners[3]
    any_mixed = np.uint8(0)
    for k in range(out.size):
        low, high = np.uint64(2 * k), np.uint64(2 * k + 1)
        own = c00[low]
        others = (own ^ c00[high]) | (own ^ c01[low]) | (own ^ c01[high]) | (own ^ c10[low])
        is_mixed[k] = others | (own ^ c10[high]) | (own ^ c11[low]) | (own ^ c11[high])
        any_mixed |= is_mixed[k]
        out[k] = own
    if any_mixed == 0:
        return
    one = np.float32(1.0)
    for k in range(out.size):
        if is_mixed[k]:
            low, high = np.uint64(2 * k), np.uint64(2 * k + 1)
            x, y, z = wx[k], wy[k], wz[k]
            u00, u01, u10, u11 = (one - x) * (one - y), (one - x) * y, x * (one - y), x * y
            labels = (c00[low], c00[high], c01[low], c01[high], c10[low], c10[high], c11[low], c11[high])
            u = one - z
            shares = (u00 * u, u00 * z, u01 * u, u01 * z, u10 * u, u10 * z, u11 * u, u11 * z)
            out[k] = largest_share(labels, shares)


@kernel
def _image_at(channel: Any, x: Any, y: Any, z: Any, factor: Any, shift: Any) -> Any:
    """Intensity at any place, near the border or beyond it."""
    shape = channel.shape
    total = np.float32(0.0)
    ix, iy, iz = math.floor(x), math.floor(y), math.floor(z)
    if ix < -1 or iy < -1 or iz < -1 or ix >= shape[0] or iy >= shape[1] or iz >= shape[2]:
        return total
    one = np.float32(1.0)
    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
    for corner in range(8):
        dx, dy, dz = corner >> 2, (corner >> 1) & 1, corner & 1
        qx, qy, qz = ix + dx, iy + dy, iz + dz
        if qx >= 0 and qy >= 0 and qz >= 0 and qx < shape[0] and qy < shape[1] and qz < shape[2]:
            share = (wx if dx else one - wx) * (wy if dy else one - wy) * (wz if dz else one - wz)
            stored = np.float32(channel[qx, qy, qz])
            total += share * (stored * factor + shift)
    return total


@kernel
def _label_at(label: Any, x: Any, y: Any, z: Any, votes: Any) -> Any:
    """Class at any place, near the border or beyond it, where everything is class 0."""
    shape = label.shape
    half, nothing = np.float32(0.5 if not votes else 0.0), np.uint8(0)
    ix, iy, iz = math.floor(x + half), math.floor(y + half), math.floor(z + half)
    if not votes:
        if ix < 0 or iy < 0 or iz < 0 or ix >= shape[0] or iy >= shape[1] or iz >= shape[2]:
            return nothing
        return label[ix, iy, iz]
    if ix < -1 or iy < -1 or iz < -1 or ix >= shape[0] or iy >= shape[1] or iz >= shape[2]:
        return nothing
    one = np.float32(1.0)
    wx, wy, wz = x - np.float32(ix), y - np.float32(iy), z - np.float32(iz)
    labels, shares = np.zeros(8, np.uint8), np.zeros(8, np.float32)
    for corner in range(8):
        dx, dy, dz = corner >> 2, (corner >> 1) & 1, corner & 1
        qx, qy, qz = ix + dx, iy + dy, iz + dz
        shares[corner] = (wx if dx else one - wx) * (wy if dy else one - wy) * (wz if dz else one - wz)
        if qx >= 0 and qy >= 0 and qz >= 0 and qx < shape[0] and qy < shape[1] and qz < shape[2]:
            labels[corner] = label[qx, qy, qz]
    return largest_share(labels, shares)


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
    """Fills a patch whose voxels are those of a box, flipped or not. Other arguments are as in `warp`.

    Args:
        image: flat memory that holds the box.
        image_steps: (3,) in it, of channels, x and y; that of z is 1.
        label: as `image`.
        label_steps: (2,) of x and y.
        start: (x, y, z), where the box begins in the patch before any flip. Beyond it are intensity 0 and class 0.
        stop: (x, y, z), where it ends.
        flips: (3,) bool.
        scale: as there.
        out_image: as there.
        out_label: as there.
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


# Each line is a slice: an index counted from zero needs no check for negative values, so the loops vectorize.
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


@kernel
def swap_classes(label: Any, swapped: Any) -> None:
    """Replaces each class (n,) uint8 by its entry in `swapped` (256,) uint8."""
    for k in range(label.size):
        label[k] = swapped[np.uint64(label[k])]
