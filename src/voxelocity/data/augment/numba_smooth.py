"""Compiled loops that smooth fields along their axes. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, fused_multiply_add

_fma = fused_multiply_add()


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
