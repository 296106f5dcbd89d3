"""Patches that are only cropped and flipped, on a CUDA device: a copy with decoding, much faster than the gather."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.triton_frame import SIZES, _decoding, _put, _whole

# What `crop` reads of each sample, int64 and in this order. Voxel (i, j, k) of the patch lies `i * step_x + j * step_y
# + k * step_z` voxels from the first, whose place may be outside of the memory; steps are negative where flipped. It is
# inside the stored box where `start <= (i, j, k) < stop`.
CROP_NAMES: Final = (
    *("image_first", "image_step_c", "image_step_x", "image_step_y", "image_step_z"),
    *("label_first", "label_step_x", "label_step_y", "label_step_z"),
    *("start_x", "start_y", "start_z", "stop_x", "stop_y", "stop_z"),
)
_NUM_NAMES = tl.constexpr(len(CROP_NAMES))

CROP_BLOCK: Final = 1024
"""Voxels of a plane of the patch that a program copies at once: eight a thread."""
CROP_PLANES: Final = 4
"""Planes that a program copies one after another, so that what it looks up serves more voxels."""
CROP_WARPS: Final = 4


@triton.jit(do_not_specialize=SIZES)
def crop(
    image, label, rows, places, scales, out, work, out_label, num_channels, nx, ny, nz,
    ALIGN: tl.constexpr, INNER: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fills patches. Programs: (blocks of a plane, parts of `PLANES` planes, samples).

    A block is a part of a plane in memory order, so that patches of any shape are written in whole lines.
    `places` is (b, 15) int64, `CROP_NAMES`; the other arguments are those of `triton_frame`.
    """
    row = tl.load(rows + tl.program_id(2)).to(tl.int64)
    place = places + row * _NUM_NAMES
    nz = nz // ALIGN * ALIGN
    plane = ny * nz
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_plane = t < plane
    j, k = t // nz, t % nz
    in_box = (j >= _whole(place + 10)) & (j < _whole(place + 13)) & (k >= _whole(place + 11)) & (k < _whole(place + 14))
    in_box = in_box & in_plane
    start_x, stop_x = _whole(place + 9), _whole(place + 12)
    first = tl.program_id(1) * PLANES
    last = tl.minimum(first + PLANES, nx)
    # int64: a box of a large scan can be longer than an int32 from its first plane to its last.
    step_c, step_x = tl.load(place + 1), tl.load(place + 2)
    image += tl.load(place)
    at = j * _whole(place + 3) + k * _whole(place + 4)
    for c in range(num_channels):
        channel = row * num_channels + c
        a, b, fill, is_last = _decoding(scales, channel)
        stored = image + c * step_c
        for i in range(first, last):
            is_inside = in_box & (i >= start_x) & (i < stop_x)
            value = tl.load(stored + i * step_x + at, mask=is_inside, other=0.0).to(tl.float32) * a
            value = tl.where(is_inside, value + (b + fill), fill)
            _put(out, work, channel, is_last, nx * plane, i * plane + t, value, in_plane, INNER)
    label_step = tl.load(place + 6)
    label += tl.load(place + 5)
    at = j * _whole(place + 7) + k * _whole(place + 8)
    target = out_label + row * nx * plane
    for i in range(first, last):
        is_inside = in_box & (i >= start_x) & (i < stop_x)
        found = tl.load(label + i * label_step + at, mask=is_inside, other=0)
        tl.store(target + i * plane + t, found, mask=in_plane)
