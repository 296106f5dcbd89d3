"""Compiled loops that take an axis-aligned patch from its volume, flipped or not: one pass for crop, label, decoding.

Nothing here holds the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


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
    """Fills a patch whose voxels are those of a box, flipped or not. Other arguments are as in `numba_warp.warp`.

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
