"""The spatial steps of a patch on a CUDA device: a copy of what is only moved, and two gathers for what is resampled.

Each kernel fills a whole patch (c, nx, ny, nz) in C order; programs are blocks of its voxels. What depends on the patch
lies in tables on the device, so that no size makes Triton compile again:

- source: the array's memory; out: the patch.
- ints: int64, `INT_NAMES`. A voxel of the moved array (the array after its exact moves) lies `step_x * i + ...`
  elements from `first`, and belongs to the array where `start <= (i, j, k) < stop`; the fill is everywhere else within
  `side`.
- reals: float64, `REAL_NAMES`; gains: (c, 2) float32, a voxel's value times the first plus the second.

The order of operations is that of `sample.c`: a label's nearest voxel depends on it. So kernels are launched with
`enable_fp_fusion=False`, and a product that is added before it is rounded is written as one.
"""

from __future__ import annotations

import os
from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.triton_frame import _whole

INT_NAMES: Final = (
    *("first", "step_c", "step_x", "step_y", "step_z"),
    *("start_x", "start_y", "start_z", "stop_x", "stop_y", "stop_z", "side_x", "side_y", "side_z"),
    *("nx", "ny", "nz", "before_x", "before_y", "before_z", "length_x", "length_y", "length_z"),
    *("num_channels", "term_0", "term_1", "term_2"),
)
"""`before` and `length`: where the part of the patch lies that a resampling fills. `term_n`: the axis of the patch
whose coordinate is in the n-th product of a sum."""
REAL_NAMES: Final = ("fill", "fill_around", "scale_x", "scale_y", "scale_z")
"""The fills of the moved array and of the patch; `SamplingGrid.scale`, 1 for none."""

BLOCK: Final = 128
"""One voxel a thread: with more, offsets of 64 bits take more registers than there are, so that ptxas spills some."""
MOVE_BLOCK: Final = 512
RESIZE_REGISTERS: Final = 64
"""Of a thread of `resize`. Left to itself, ptxas aims for 32 and spills some where voxels have one or two bytes."""
_IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
_ZEROS, _BORDER, _REFLECTION = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def move(source, out, ints, reals, gains, HAS_GAIN: tl.constexpr, BLOCK: tl.constexpr):
    """Copies the moved array. Programs: (blocks of a channel, channels)."""
    channel = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, k, in_patch, num_voxels = _positions(t, ints)
    first, step_c = tl.load(ints), tl.load(ints + 1)
    at, in_array = _at(ints, i, j, k)
    value = tl.load(source + (first + channel * step_c + at), mask=in_array & in_patch, other=0)
    value = tl.where(in_array, value, tl.load(reals).to(value.dtype))
    if HAS_GAIN:
        value = value.to(tl.float32) * tl.load(gains + 2 * channel) + tl.load(gains + 2 * channel + 1)
    tl.store(out + (channel * num_voxels + t), value, mask=in_patch)


@triton.jit
def warp(
    source, out, ints, reals, gains, theta, lines, shifts,
    NEAREST: tl.constexpr, BEYOND: tl.constexpr, FUSED: tl.constexpr, WIDE: tl.constexpr,
    ALIGN_CORNERS: tl.constexpr, ONCE: tl.constexpr, SHIFTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes each voxel from its place in the moved array, all channels one after the other. Programs: (blocks,).

    - theta: (3, 4) float32, a row for each axis of the array, columns in the order of the terms.
    - lines: float32, the coordinates along the patch's axes, one line after the other.
    - shifts: (3, length_x, length_y, length_z) float32 in the order of the patch's axes; not read unless SHIFTED.
    - NEAREST: the nearest voxel, halves to even; otherwise between the eight around.
    - BEYOND: 0 zeros, 1 border, 2 reflection; ONCE: `sampler_is_fused` of the device.
    - FUSED, WIDE, ALIGN_CORNERS: `SamplingGrid.is_fused`, `is_wide` and `align_corners`.
    """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, k, in_patch, num_voxels = _positions(t, ints)
    i, j, k, is_sampled = _sampled(ints, i, j, k, in_patch)
    u0, u1, u2 = _coordinates(ints, lines, shifts, i, j, k, is_sampled, SHIFTED)
    x = _sum(theta, u0, u1, u2, FUSED)
    y = _sum(theta + 4, u0, u1, u2, FUSED)
    z = _sum(theta + 8, u0, u1, u2, FUSED)
    x = _voxel(x, tl.load(reals + 2), _whole(ints + 11), BEYOND, WIDE, ALIGN_CORNERS, ONCE)
    y = _voxel(y, tl.load(reals + 3), _whole(ints + 12), BEYOND, WIDE, ALIGN_CORNERS, ONCE)
    z = _voxel(z, tl.load(reals + 4), _whole(ints + 13), BEYOND, WIDE, ALIGN_CORNERS, ONCE)
    fill, around = tl.load(reals).to(tl.float32), tl.load(reals + 1).to(tl.float32)
    source += tl.load(ints)
    step_c, num_channels = tl.load(ints + 1), _whole(ints + 23)
    target = out + t
    for channel in range(num_channels):
        if NEAREST:
            ix, iy, iz = _even(x).to(tl.int32), _even(y).to(tl.int32), _even(z).to(tl.int32)
            value = _fetched(source, ints, fill, ix, iy, iz, is_sampled)
        else:
            value = _between(source, ints, fill, x, y, z, is_sampled)
        value = tl.where(is_sampled, value, around)
        value = value * tl.load(gains + 2 * channel) + tl.load(gains + 2 * channel + 1)
        tl.store(target, value, mask=in_patch)
        source += step_c
        target += num_voxels


@triton.jit
def resize(source, out, ints, reals, gains, tables, index, weight, BLOCK: tl.constexpr):
    """Weighted sums of the moved array, whose axes are those of the patch. Programs: (blocks of a channel, channels).

    - tables: (3, 2) int64, for each axis the number of taps and where its tables begin in `index` and `weight`.
    - index: int32, `AxisWeights.index` of each axis, (taps, length); weight: float32, likewise.
    """
    channel = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, k, in_patch, num_voxels = _positions(t, ints)
    i, j, k, is_sampled = _sampled(ints, i, j, k, in_patch)
    n0, n1, n2 = _whole(ints + 20), _whole(ints + 21), _whole(ints + 22)
    fill, around = tl.load(reals).to(tl.float32), tl.load(reals + 1).to(tl.float32)
    source += tl.load(ints) + channel * tl.load(ints + 1)
    first_x, first_y, first_z = _whole(tables + 1), _whole(tables + 3), _whole(tables + 5)
    start_x, start_y, start_z = _whole(ints + 5), _whole(ints + 6), _whole(ints + 7)
    stop_x, stop_y, stop_z = _whole(ints + 8), _whole(ints + 9), _whole(ints + 10)
    step_x, step_y, step_z = tl.load(ints + 2), tl.load(ints + 3), tl.load(ints + 4)
    total = tl.zeros((BLOCK,), tl.float32)
    for tap_x in range(_whole(tables)):
        at = first_x + tap_x * n0 + i
        ix, wx = tl.load(index + at, mask=is_sampled, other=0), tl.load(weight + at, mask=is_sampled, other=0.0)
        in_x = (ix >= start_x) & (ix < stop_x) & is_sampled
        plane = tl.zeros((BLOCK,), tl.float32)
        for tap_y in range(_whole(tables + 2)):
            at = first_y + tap_y * n1 + j
            iy, wy = tl.load(index + at, mask=is_sampled, other=0), tl.load(weight + at, mask=is_sampled, other=0.0)
            in_y = (iy >= start_y) & (iy < stop_y) & in_x
            line = source + (ix.to(tl.int64) * step_x + iy.to(tl.int64) * step_y)
            row = tl.zeros((BLOCK,), tl.float32)
            for tap_z in range(_whole(tables + 4)):
                at = first_z + tap_z * n2 + k
                iz = tl.load(index + at, mask=is_sampled, other=0)
                in_z = (iz >= start_z) & (iz < stop_z) & in_y
                value = tl.load(line + iz.to(tl.int64) * step_z, mask=in_z, other=0).to(tl.float32)
                row += tl.where(in_z, value, fill) * tl.load(weight + at, mask=is_sampled, other=0.0)
            plane += row * wy
        total += plane * wx
    value = tl.where(is_sampled, total, around)
    value = value * tl.load(gains + 2 * channel) + tl.load(gains + 2 * channel + 1)
    tl.store(out + (channel * num_voxels + t), value, mask=in_patch)


@triton.jit
def _positions(t, ints):
    """The patch's voxels t as positions, which of them exist, and how many there are."""
    nx, ny, nz = _whole(ints + 14), _whole(ints + 15), _whole(ints + 16)
    return t // (ny * nz), t // nz % ny, t % nz, t < nx * ny * nz, (nx * ny).to(tl.int64) * nz


@triton.jit
def _sampled(ints, i, j, k, in_patch):
    """Positions in the part of the patch that a resampling fills, and which lie in it."""
    i, j, k = i - _whole(ints + 17), j - _whole(ints + 18), k - _whole(ints + 19)
    is_sampled = (i >= 0) & (i < _whole(ints + 20)) & (j >= 0) & (j < _whole(ints + 21)) & (k >= 0) & in_patch
    return i, j, k, is_sampled & (k < _whole(ints + 22))


@triton.jit
def _coordinates(ints, lines, shifts, i, j, k, mask, SHIFTED: tl.constexpr):
    """Coordinates of a sum's three terms."""
    n0, n1, n2 = _whole(ints + 20), _whole(ints + 21), _whole(ints + 22)
    c0 = tl.load(lines + i, mask=mask, other=0.0)
    c1 = tl.load(lines + n0 + j, mask=mask, other=0.0)
    c2 = tl.load(lines + n0 + n1 + k, mask=mask, other=0.0)
    if SHIFTED:
        at = (i * n1 + j) * n2 + k
        c0 += tl.load(shifts + at, mask=mask, other=0.0)
        c1 += tl.load(shifts + (n0 * n1 * n2 + at), mask=mask, other=0.0)
        c2 += tl.load(shifts + (2 * n0 * n1 * n2 + at), mask=mask, other=0.0)
    u0, u1 = _chosen(_whole(ints + 24), c0, c1, c2), _chosen(_whole(ints + 25), c0, c1, c2)
    return u0, u1, _chosen(_whole(ints + 26), c0, c1, c2)


@triton.jit
def _at(ints, i, j, k):
    """Where a voxel of the moved array lies, and whether it is one of the array's."""
    at = i.to(tl.int64) * tl.load(ints + 2) + j.to(tl.int64) * tl.load(ints + 3) + k.to(tl.int64) * tl.load(ints + 4)
    in_array = (i >= _whole(ints + 5)) & (j >= _whole(ints + 6)) & (k >= _whole(ints + 7))
    return at, in_array & (i < _whole(ints + 8)) & (j < _whole(ints + 9)) & (k < _whole(ints + 10))


@triton.jit
def _fetched(source, ints, fill, ix, iy, iz, mask):
    """Voxels of the moved array as float32; 0 beyond it."""
    at, in_array = _at(ints, ix, iy, iz)
    in_moved = (ix >= 0) & (iy >= 0) & (iz >= 0)
    in_moved = in_moved & (ix < _whole(ints + 11)) & (iy < _whole(ints + 12)) & (iz < _whole(ints + 13))
    value = tl.load(source + at, mask=in_array & mask, other=0).to(tl.float32)
    return tl.where(in_array, value, tl.where(in_moved, fill, 0.0))


@triton.jit
def _pair(source, ints, fill, ix, iy, iz, wz, mask):
    low = _fetched(source, ints, fill, ix, iy, iz, mask)
    return low * (1.0 - wz) + _fetched(source, ints, fill, ix, iy, iz + 1, mask) * wz


@triton.jit
def _between(source, ints, fill, x, y, z, mask):
    """Between the eight voxels around a place."""
    low_x, low_y, low_z = tl.floor(x), tl.floor(y), tl.floor(z)
    wx, wy, wz = (x - low_x).to(tl.float32), (y - low_y).to(tl.float32), (z - low_z).to(tl.float32)
    ix, iy, iz = low_x.to(tl.int32), low_y.to(tl.int32), low_z.to(tl.int32)
    value = _pair(source, ints, fill, ix, iy, iz, wz, mask) * (1.0 - wy)
    value += _pair(source, ints, fill, ix, iy + 1, iz, wz, mask) * wy
    behind = _pair(source, ints, fill, ix + 1, iy, iz, wz, mask) * (1.0 - wy)
    behind += _pair(source, ints, fill, ix + 1, iy + 1, iz, wz, mask) * wy
    return value * (1.0 - wx) + behind * wx


@triton.jit
def _chosen(axis, c0, c1, c2):
    return tl.where(axis == 0, c0, tl.where(axis == 1, c1, c2))


@triton.jit
def _sum(row, u0, u1, u2, FUSED: tl.constexpr):
    """`SamplingGrid`'s sum for one axis of the array."""
    f0, f1, f2 = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    total = u0 * f0
    if FUSED:
        total = _once(u1, f1, total)
        total = _once(u2, f2, total)
    else:
        total = total + u1 * f1
        total = total + u2 * f2
    return total + tl.load(row + 3)


@triton.jit
def _once(a, b, c):
    """`a * b + c` of float32, rounded once; the interpreter's own `fma` rounds twice."""
    if _IS_INTERPRETED:
        total = (a.to(tl.float64) * b.to(tl.float64) + c.to(tl.float64)).to(tl.float32)
    else:
        total = tl.fma(a, b, c)
    return total


@triton.jit
def _voxel(coordinate, scale, side, BEYOND: tl.constexpr, WIDE: tl.constexpr, ALIGN: tl.constexpr, ONCE: tl.constexpr):
    """The place in voxels, by torch's `grid_sample`, held within the array and its ring."""
    if WIDE:
        v = coordinate.to(tl.float64) * scale
        num = side.to(tl.float64)
    else:
        v = coordinate * scale.to(tl.float32)
        num = side.to(tl.float32)
    if ALIGN:
        v = (v + 1.0) * 0.5 * (num - 1.0)
    elif ONCE:
        v = _less_one(v + 1.0, num) * 0.5
    else:
        v = ((v + 1.0) * num - 1.0) * 0.5
    if BEYOND == _REFLECTION:
        v = _reflected(v, num, ALIGN)
    if BEYOND == _ZEROS:  # noqa: SIM108 - decided by the compiler
        v = tl.minimum(tl.maximum(v, -1.0), num)
    else:
        v = tl.minimum(tl.maximum(v, 0.0), num - 1.0)
    return v


@triton.jit
def _less_one(v, num):
    """`v * num - 1`, rounded once."""
    if _IS_INTERPRETED:
        # Both parts' products are exact, and so is the difference of the larger one and 1.
        high, wide = v.to(tl.float32).to(tl.float64), num.to(tl.float64)
        less = ((high * wide - 1.0) + (v.to(tl.float64) - high) * wide).to(v.dtype)
    else:
        less = tl.fma(v, num, num * 0.0 - 1.0)
    return less


@triton.jit
def _reflected(v, num, ALIGN: tl.constexpr):
    """Mirror images about the faces of the outermost voxels or their centers, in torch's order of operations."""
    if ALIGN:
        low, span = num * 0.0, num - 1.0
    else:
        low, span = num * 0.0 - 0.5, num
    divisor = tl.where(span == 0.0, 1.0, span)
    far = tl.abs(v - low)
    flips = tl.floor(far / divisor)
    rest = far - flips * span
    rest = tl.where(rest < 0.0, rest + span, rest)
    half = flips * 0.5
    is_even = half == tl.floor(half)
    mirrored = tl.where(is_even, rest + low, span - rest + low)
    return tl.where(span == 0.0, low + v * 0.0, mirrored)


@triton.jit
def _even(v):
    """Rounded to the nearest whole number, halves to the even one."""
    low = tl.floor(v)
    rest = v - low
    half = low * 0.5
    is_odd = half != tl.floor(half)
    return low + tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), 1.0, 0.0).to(v.dtype)
