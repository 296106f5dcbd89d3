"""What the augmentation's kernels share: which arguments are sizes, what a program works on, where results go.

A batch is changed in float32 and given out in any dtype and in C order or channels_last_3d, so kernels take both:

- work: (b, c, nx, ny, nz) float32 in C order, for channels that another kernel changes later; the memory of `out` if
  that is of the same kind.
- out: (b, c, nx, ny, nz), for channels whose last change this is.
- INNER: channels that lie next to each other in `out`: c in channels_last_3d, 1 in C order. With more than one, a
  warp's store reaches only every c-th number, and the device's L2 cache puts the lines together.

The kernels that fill patches, `triton_crop.crop` and `triton_warp.gather`, also share:

- image, label: all stored voxels of these samples; sample r has its own at `places[r]`.
- rows: (n,) int32, which rows of the batch these samples are.
- scales: (b, c, 4) float32: an intensity is `stored * [0] + [1]`, plus `[2]` everywhere; [3] is 1 if this is its last
  change.
- out_label: (b, nx, ny, nz) uint8.
- ALIGN: a power of two that divides nz, for stores of that many voxels.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

SIZES: Final = (
    *("nx", "ny", "nz", "points_x", "points_y", "points_z", "num_taps", "side", "inner"),
    *("tiles_y", "tiles_z"),
)
"""Arguments for whose values Triton must not compile a kernel again: it does by default where one is 1 or a multiple of
16. `num_voxels` stays out, as its being a multiple of 16 is what lets a thread load 16 bytes at once, and patches with
another number of voxels are rare; so does `num_channels`, which no run changes."""


@triton.jit
def _whole(pointer):
    """A number of a table of int64, as int32."""
    return tl.load(pointer).to(tl.int32)


@triton.jit
def _listed(entry):
    """The channel of a list's entry, int64, the flag of this list, and whether its last change is this one."""
    number = tl.load(entry)
    return (number >> 2).to(tl.int64), (number & 2) != 0, (number & 1) != 0


@triton.jit
def _decoding(scales, channel):
    """Factor, summand and fill of a channel, and whether nothing changes it later."""
    scale = scales + channel * 4
    return tl.load(scale), tl.load(scale + 1), tl.load(scale + 2), tl.load(scale + 3) != 0.0


@triton.jit
def _put(out, work, channel, is_last, num_voxels, t, v, mask, INNER: tl.constexpr):
    """Stores voxels `t` of a channel, int64, of the batch. Their places within a sample of `out` are int32."""
    if is_last:
        first = out + (channel // INNER * num_voxels * INNER + channel % INNER)
        tl.store(first + t * INNER, v.to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(work + channel * num_voxels + t, v, mask=mask)
