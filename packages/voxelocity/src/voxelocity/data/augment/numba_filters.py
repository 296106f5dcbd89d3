"""Compiled loops of `smooth` and `steps`, which filter along the axes with zeros beyond them, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, fused_multiply_add, inlined, kernel

_fma = fused_multiply_add()


@inlined
def _blur_plane(plane: Any, weights_y: Any, weights_z: Any, padded: Any, along_z: Any, target: Any) -> None:
    """The blur within a plane (ny, nz), into `target`; `padded` has zeros before and after the nz places."""
    ny, nz = plane.shape
    radius_y, radius_z = weights_y.size // 2, weights_z.size // 2
    for j in range(ny):
        line = plane[j]
        for k in range(nz):
            padded[radius_z + k] = line[k]
        row = along_z[j]
        middle = weights_z[radius_z]
        for k in range(nz):
            row[k] = middle * padded[radius_z + k]
        for r in range(1, radius_z + 1):
            weight = weights_z[radius_z - r]
            for k in range(nz):
                row[k] += weight * (padded[radius_z + k - r] + padded[radius_z + k + r])
    for j in range(ny):
        row, line = target[j], along_z[j]
        middle = weights_y[radius_y]
        for k in range(nz):
            row[k] = middle * line[k]
        for r in range(1, radius_y + 1):
            weight = weights_y[radius_y - r]
            if j >= r:
                before = along_z[j - r]
                for k in range(nz):
                    row[k] += weight * before[k]
            if j + r < ny:
                after = along_z[j + r]
                for k in range(nz):
                    row[k] += weight * after[k]


@kernel
def blur_in_zeros(channel: Any, weights_x: Any, weights_y: Any, weights_z: Any, alpha: Any, sharpens: Any) -> None:
    """`steps.field.Blur` on a channel (nx, ny, nz), in place; `alpha` is only used if it `sharpens`.

    One pass, which keeps only the blurred planes that it needs.
    """
    nx, ny, nz = channel.shape
    radius = weights_x.size // 2
    padded = np.zeros(nz + 2 * (weights_z.size // 2), np.float32)
    along_z = np.empty((ny, nz), np.float32)
    # Blurred planes i - radius to i + radius, plane p in slot p % num_slots.
    num_slots = min(2 * radius + 1, nx)
    ring = np.empty((num_slots, ny, nz), np.float32)
    row = np.empty(nz, np.float32)
    for p in range(min(radius, nx)):
        _blur_plane(channel[p], weights_y, weights_z, padded, along_z, ring[p % num_slots])
    for i in range(nx):
        if i + radius < nx:
            ahead = i + radius
            _blur_plane(channel[ahead], weights_y, weights_z, padded, along_z, ring[ahead % num_slots])
        first, last = max(i - radius, 0), min(i + radius, nx - 1)
        for j in range(ny):
            line = channel[i, j]
            row[:] = np.float32(0.0)
            for p in range(first, last + 1):
                weight = weights_x[p - i + radius]
                plane_row = ring[p % num_slots, j]
                for k in range(nz):
                    row[k] += weight * plane_row[k]
            if sharpens:
                for k in range(nz):
                    line[k] = line[k] + alpha * (line[k] - row[k])
            else:
                for k in range(nz):
                    line[k] = row[k]


@exact_kernel
def smooth(fields: Any, weights: Any, out: Any) -> None:
    """Fills `out` with fields (c, x, y, z) float32 smoothed along x, y and z, with zeros beyond them.

    The products of a voxel are summed in the kernel's order, each added before it is rounded, as torch's convolutions
    do with several threads, so that the results are equal bit for bit.

    Plane by plane: the sum along x goes into a scratch plane, which is immediately smoothed along y and z.

    Args:
        fields: in C order.
        weights: (2 * radius + 1,) float32, symmetric.
        out: of the fields' shape, in C order.
    """
    num_fields, nx, ny, nz = fields.shape
    radius = weights.size // 2
    plane = np.empty((ny, nz), np.float32)
    row = np.zeros(nz + 2 * radius, np.float32)
    for c in range(num_fields):
        for i in range(nx):
            _sum_along(fields[c].reshape(nx, ny * nz), i, weights, plane.reshape(-1))
            for j in range(ny):
                _sum_along(plane, j, weights, row[radius : radius + nz])
                _smooth_row(row, weights, out[c, i, j])


@exact_kernel
def _sum_along(lines: Any, place: Any, weights: Any, out: Any) -> None:
    """The weighted sum of the lines around one of them."""
    radius, block = weights.size // 2, 1024
    first, last = max(0, radius - place), min(weights.size, lines.shape[0] + radius - place)
    for begin in range(0, out.size, block):
        part = out[begin : begin + block]
        part[:] = np.float32(0.0)
        for tap in range(first, last):
            line, weight = lines[place + tap - radius, begin : begin + block], weights[tap]
            for k in range(part.size):
                part[k] = _fma(line[k], weight, part[k])


@exact_kernel
def _smooth_row(row: Any, weights: Any, out: Any) -> None:
    """Smooths a row that is padded with the kernel's radius of zeros on each side."""
    out[:] = np.float32(0.0)
    for tap in range(weights.size):
        line, weight = row[tap : tap + out.size], weights[tap]
        for k in range(out.size):
            out[k] = _fma(line[k], weight, out[k])
