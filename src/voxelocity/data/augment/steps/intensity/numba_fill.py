"""Compiled loops of `Fill`. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def boxes(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """Fills the boxes in place.

    Args:
        patch: (c, x, y, z) float32.
        places: (n, 2, 3) int64, start and stop.
        noise: float64, a number for each voxel of box after box, or empty.
        low: the fill value without noise.
        width: of the range that the noise is spread over.
    """
    has_noise = len(noise) > 0
    place = 0
    for b in range(len(places)):
        first, last = places[b, 0, 2], places[b, 1, 2]
        for c in range(patch.shape[0]):
            for i in range(places[b, 0, 0], places[b, 1, 0]):
                for j in range(places[b, 0, 1], places[b, 1, 1]):
                    for k in range(first, last):
                        patch[c, i, j, k] = np.float32(low + noise[place] * width) if has_noise else np.float32(low)
                        place += 1


@kernel
def outside(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """Fills in place all voxels outside the boxes.

    Args:
        patch: as in `boxes`.
        places: as in `boxes`.
        noise: float64, a number for each voxel of the patch, or empty.
        low: as in `boxes`.
        width: as in `boxes`.
    """
    has_noise = len(noise) > 0
    num_channels, nx, ny, nz = patch.shape
    is_kept = np.empty(nz, np.bool_)
    for i in range(nx):
        for j in range(ny):
            is_kept[:] = False
            for b in range(len(places)):
                if places[b, 0, 0] <= i < places[b, 1, 0] and places[b, 0, 1] <= j < places[b, 1, 1]:
                    is_kept[places[b, 0, 2] : places[b, 1, 2]] = True
            for c in range(num_channels):
                place = ((c * nx + i) * ny + j) * nz
                for k in range(nz):
                    if not is_kept[k]:
                        patch[c, i, j, k] = np.float32(low + noise[place + k] * width) if has_noise else np.float32(low)
