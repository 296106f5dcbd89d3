"""The blur of a channel with zeros beyond it, compiled: one pass that keeps only the blurred planes it needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel


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
def blur(channel: Any, weights_x: Any, weights_y: Any, weights_z: Any, alpha: Any, sharpens: Any) -> None:
    """`steps.field.Blur` on a channel (nx, ny, nz), in place; `alpha` is only used if it `sharpens`."""
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
