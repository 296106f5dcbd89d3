"""Compiled loops that copy voxels to another memory order. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

from voxelocity.core.jit import kernel


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
