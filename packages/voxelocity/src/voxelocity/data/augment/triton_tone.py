"""Contrast, low resolution and gamma on a CUDA device: what depends on the range, mean and deviation of a channel.

At most `PARTS` programs sum over a channel and leave their parts in `sums`; each kernel that needs a sum adds the parts
in the same order, so that nothing waits for the host and a sample comes out the same in any batch. Channels and their
lists are those of `triton_intensity`. Programs are (parts, channels of the list), with the same number of parts for all
kernels of a batch, and kernels share these arguments:

- out, work, INNER: those of `triton_frame`; work is read. channels: (n,) int32, the list.
- values: (b * c, 8) float32, `VALUE_NAMES`.
- sums: (b * c, NUM_SLOTS, 4, PARTS) float64, of which the parts in use are written.
- num_voxels: of a channel, nx * ny * nz; BLOCK: voxels in work at once.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.triton_frame import SIZES, _listed, _put
from voxelocity.data.augment.triton_intensity import VALUE_NAMES

_NUM_VALUES = tl.constexpr(len(VALUE_NAMES))

# Slots of `sums`, each (channels, 4, PARTS) float64 of minimum, maximum, sum and sum of squares: of the original
# channel (FIRST), after its contrast (SPREAD), after one gamma (BENT) and after two (BENT_AGAIN).
NUM_SLOTS: Final = 4
_NUM_SLOTS = tl.constexpr(NUM_SLOTS)
_FIRST, _SPREAD, _BENT, _BENT_AGAIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def measure(work, channels, sums, num_voxels, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of unchanged channels, into slot FIRST. Writes no image."""
    channel, _, _ = _listed(channels + tl.program_id(1))
    start, stop = _part(num_voxels, BLOCK)
    low, high, total, squares = _nothing(BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        v = tl.load(work + channel * num_voxels + t, mask=in_part, other=0.0)
        low, high, total, squares = _counted(low, high, total, squares, v, in_part)
    _keep(sums, _FIRST, channel, low, high, total, squares, PARTS)


@triton.jit
def spread(work, target, channels, values, sums, num_voxels, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Contrast of channels that are coarsened next, into `target` (n, num_voxels) float32, scratch.

    FIRST is read where there is a contrast.
    """
    place = tl.program_id(1).to(tl.int64)
    channel, _, _ = _listed(channels + place)
    contrast = tl.load(values + channel * _NUM_VALUES + 4)
    low, high, mean = 0.0, 0.0, 0.0
    if contrast != 1.0:
        low, high, mean = _range_and_mean(sums, _FIRST, channel, num_voxels, PARTS)
    start, stop = _part(num_voxels, BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        v = tl.load(work + channel * num_voxels + t, mask=in_part, other=0.0)
        tl.store(target + place * num_voxels + t, _contrasted(v, contrast, low, high, mean), mask=in_part)


@triton.jit(do_not_specialize=SIZES)
def coarsen(
    source, out, work, channels, below, above, shares, sums, num_voxels, nx, ny, nz,
    ALIGN: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The low resolution of `source` (n, nx * ny * nz) float32, and its sums into slot FIRST.

    `below`, `above` int32 and `shares` float32 are `params.low_positions` of x, y and z: (n, nx + ny + nz).
    ALIGN, a power of two, divides nx, ny and nz.
    """
    nx, ny, nz = nx // ALIGN * ALIGN, ny // ALIGN * ALIGN, nz // ALIGN * ALIGN
    place = tl.program_id(1).to(tl.int64)
    channel, _, is_last = _listed(channels + place)
    source += place * num_voxels
    table = place * (nx + ny + nz)
    start, stop = _part(num_voxels, BLOCK)
    low, high, total, squares = _nothing(BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        i, j, k = table + t // (ny * nz), table + nx + t // nz % ny, table + nx + ny + t % nz
        x0, x1 = tl.load(below + i, mask=in_part, other=0), tl.load(above + i, mask=in_part, other=0)
        y0, y1 = tl.load(below + j, mask=in_part, other=0) * nz, tl.load(above + j, mask=in_part, other=0) * nz
        z0, z1 = tl.load(below + k, mask=in_part, other=0), tl.load(above + k, mask=in_part, other=0)
        wx, wy = tl.load(shares + i, mask=in_part, other=0.0), tl.load(shares + j, mask=in_part, other=0.0)
        wz = tl.load(shares + k, mask=in_part, other=0.0)
        x0, x1 = x0 * ny * nz, x1 * ny * nz
        v00 = _mixed(source + (x0 + y0), z0, z1, wz, in_part)
        v01 = _mixed(source + (x0 + y1), z0, z1, wz, in_part)
        v10 = _mixed(source + (x1 + y0), z0, z1, wz, in_part)
        v11 = _mixed(source + (x1 + y1), z0, z1, wz, in_part)
        v0, v1 = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
        v = v0 + wx * (v1 - v0)
        _put(out, work, channel, is_last, num_voxels, t, v, in_part, INNER)
        low, high, total, squares = _counted(low, high, total, squares, v, in_part)
    _keep(sums, _FIRST, channel, low, high, total, squares, PARTS)


@triton.jit
def bend(
    out, work, channels, values, sums, num_voxels,
    INNER: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Contrast, where the list's flag says so, then the first gamma that a channel drew, if any.

    Reads FIRST; writes SPREAD for the channel before its gamma, and BENT for after it.
    """
    channel, is_contrasted, is_last = _listed(channels + tl.program_id(1))
    value = values + channel * _NUM_VALUES
    contrast = tl.where(is_contrasted, tl.load(value + 4), 1.0)
    inverted, gamma = tl.load(value + 5), tl.load(value + 6)
    low, high, mean = _range_and_mean(sums, _FIRST, channel, num_voxels, PARTS)
    one_end = _contrasted(low, contrast, low, high, mean)
    other_end = _contrasted(high, contrast, low, high, mean)
    new_low, new_high = tl.minimum(one_end, other_end), tl.maximum(one_end, other_end)
    is_inverted = inverted != 1.0
    exponent = tl.where(is_inverted, inverted, gamma)
    start, stop = _part(num_voxels, BLOCK)
    low_a, high_a, total_a, squares_a = _nothing(BLOCK)
    low_b, high_b, total_b, squares_b = _nothing(BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        at = work + channel * num_voxels + t
        v = _contrasted(tl.load(at, mask=in_part, other=0.0), contrast, low, high, mean)
        low_a, high_a, total_a, squares_a = _counted(low_a, high_a, total_a, squares_a, v, in_part)
        v = _bent(v, exponent, is_inverted, new_low, new_high)
        low_b, high_b, total_b, squares_b = _counted(low_b, high_b, total_b, squares_b, v, in_part)
        _put(out, work, channel, is_last, num_voxels, t, v, in_part, INNER)
    _keep(sums, _SPREAD, channel, low_a, high_a, total_a, squares_a, PARTS)
    _keep(sums, _BENT, channel, low_b, high_b, total_b, squares_b, PARTS)


@triton.jit
def bend_again(
    out, work, channels, values, sums, num_voxels, KEEPS_MOMENTS: tl.constexpr,
    INNER: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finishes the first gamma, then applies the second, for channels that drew both.

    Reads SPREAD and BENT, writes BENT_AGAIN.
    """
    channel, _, is_last = _listed(channels + tl.program_id(1))
    gamma = tl.load(values + channel * _NUM_VALUES + 6)
    low, high, _ = _range_and_mean(sums, _BENT, channel, num_voxels, PARTS)
    factor, shift = 1.0, 0.0
    if KEEPS_MOMENTS:
        factor, shift = _restoring(sums, _BENT, channel, num_voxels, PARTS)
    low, high = low * factor + shift, high * factor + shift
    start, stop = _part(num_voxels, BLOCK)
    low_b, high_b, total_b, squares_b = _nothing(BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        at = work + channel * num_voxels + t
        v = _bent(tl.load(at, mask=in_part, other=0.0) * factor + shift, gamma, False, low, high)
        low_b, high_b, total_b, squares_b = _counted(low_b, high_b, total_b, squares_b, v, in_part)
        _put(out, work, channel, is_last, num_voxels, t, v, in_part, INNER)
    _keep(sums, _BENT_AGAIN, channel, low_b, high_b, total_b, squares_b, PARTS)


@triton.jit
def restore(
    out, work, channels, sums, num_voxels,
    INNER: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Restores the mean and deviation that channels had before gamma.

    Reads SPREAD, and BENT or, where the list's flag says that two were made, BENT_AGAIN.
    """
    channel, was_bent_twice, is_last = _listed(channels + tl.program_id(1))
    slot = tl.where(was_bent_twice, _BENT_AGAIN, _BENT)
    factor, shift = _restoring(sums, slot, channel, num_voxels, PARTS)
    start, stop = _part(num_voxels, BLOCK)
    for block in range(start, stop, BLOCK):
        t = block + tl.arange(0, BLOCK)
        in_part = t < stop
        v = tl.load(work + channel * num_voxels + t, mask=in_part, other=0.0) * factor + shift
        _put(out, work, channel, is_last, num_voxels, t, v, in_part, INNER)


@triton.jit
def _mixed(line, below, above, share, mask):
    low = tl.load(line + below, mask=mask, other=0.0)
    return low + share * (tl.load(line + above, mask=mask, other=0.0) - low)


@triton.jit
def _contrasted(v, contrast, low, high, mean):
    spread_out = tl.minimum(tl.maximum((v - mean) * contrast + mean, low), high)
    return tl.where(contrast != 1.0, spread_out, v)


@triton.jit
def _bent(v, gamma, is_inverted, low, high):
    """Gamma of v between low and high; v itself if these are equal or gamma is 1."""
    span = high - low
    sign = tl.where(is_inverted, -1.0, 1.0)
    base = tl.where(is_inverted, high, low)
    unit = (v - base) * (sign / tl.where(span > 0.0, span, 1.0))
    unit = tl.minimum(tl.maximum(unit, 1e-30), 1.0)
    bent = base + sign * span * tl.exp2(tl.maximum(gamma * tl.log2(unit), -126.0))
    return tl.where((span > 0.0) & (gamma != 1.0), bent, v)


@triton.jit
def _part(num_voxels, BLOCK: tl.constexpr):
    size = tl.cdiv(tl.cdiv(num_voxels, tl.num_programs(0)), BLOCK) * BLOCK
    start = tl.program_id(0) * size
    return start, tl.minimum(start + size, num_voxels)


@triton.jit
def _nothing(BLOCK: tl.constexpr):
    low, high = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    return low, high, tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)


@triton.jit
def _counted(low, high, total, squares, v, mask):
    wide = tl.where(mask, v, 0.0).to(tl.float64)
    low = tl.minimum(low, tl.where(mask, v, float("inf")))
    high = tl.maximum(high, tl.where(mask, v, float("-inf")))
    return low, high, total + wide, squares + wide * wide


@triton.jit
def _keep(sums, slot, channel, low, high, total, squares, PARTS: tl.constexpr):
    at = sums + (channel * _NUM_SLOTS + slot) * 4 * PARTS + tl.program_id(0)
    tl.store(at, tl.min(low, 0).to(tl.float64))
    tl.store(at + PARTS, tl.max(high, 0).to(tl.float64))
    tl.store(at + 2 * PARTS, tl.sum(total, 0))
    tl.store(at + 3 * PARTS, tl.sum(squares, 0))


@triton.jit
def _parts(sums, slot, channel, PARTS: tl.constexpr):
    """Where the parts of a channel's slot lie, and which of them this batch has: as many as a channel has programs."""
    part = tl.arange(0, PARTS)
    return sums + (channel * _NUM_SLOTS + slot) * 4 * PARTS + part, part < tl.num_programs(0)


@triton.jit
def _range_and_mean(sums, slot, channel, num_voxels, PARTS: tl.constexpr):
    """Minimum, maximum and mean, float32."""
    at, is_part = _parts(sums, slot, channel, PARTS)
    low = tl.min(tl.load(at, mask=is_part, other=float("inf")), 0)
    high = tl.max(tl.load(at + PARTS, mask=is_part, other=float("-inf")), 0)
    mean = tl.sum(tl.load(at + 2 * PARTS, mask=is_part, other=0.0), 0) / num_voxels
    return low.to(tl.float32), high.to(tl.float32), mean.to(tl.float32)


@triton.jit
def _mean_and_std(sums, slot, channel, num_voxels, PARTS: tl.constexpr):
    """Float64."""
    at, is_part = _parts(sums, slot, channel, PARTS)
    mean = tl.sum(tl.load(at + 2 * PARTS, mask=is_part, other=0.0), 0) / num_voxels
    variance = tl.sum(tl.load(at + 3 * PARTS, mask=is_part, other=0.0), 0) / num_voxels - mean * mean
    return mean, tl.sqrt(tl.maximum(variance, 0.0))


@triton.jit
def _restoring(sums, slot, channel, num_voxels, PARTS: tl.constexpr):
    """Factor and shift that give the channel in `slot` the mean and deviation of SPREAD, float32."""
    mean, std = _mean_and_std(sums, _SPREAD, channel, num_voxels, PARTS)
    new_mean, new_std = _mean_and_std(sums, slot, channel, num_voxels, PARTS)
    is_spread = new_std > 0.0
    factor = tl.where(is_spread, std / tl.where(is_spread, new_std, 1.0), 1.0)
    shift = tl.where(is_spread, mean - new_mean * factor, 0.0)
    return factor.to(tl.float32), shift.to(tl.float32)
