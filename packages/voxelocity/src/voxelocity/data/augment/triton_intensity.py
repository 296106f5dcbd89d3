"""Bias, noise, brightness and blur on a CUDA device. Each kernel works on a list of channels: those that drew its
change.

Channel p of a batch is `row * c + channel`. An entry of a list, int32, is `4 * p + 2 * flag + is_last`; what the flag
means depends on the kernel. Changes that need sums over a channel are in `triton_tone`.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.noise import BLOCKS_PER_CHUNK, FIRST_PIECE, FRACTION_BITS, FRACTION_STEP, ROUNDS, STEP
from voxelocity.data.augment.triton_frame import SIZES, _listed, _put

# What the kernels read of each channel, float32 and in this order.
VALUE_NAMES: Final = ("noise_std", "scale", "shift", "has_bias", "contrast", "gamma_inverted", "gamma", "is_blurred")
_NUM_VALUES = tl.constexpr(len(VALUE_NAMES))

BLOCK: Final = 1024
"""Voxels that a program processes at once."""
_LANES = tl.constexpr(BLOCKS_PER_CHUNK)
_ROUNDS = tl.constexpr(ROUNDS)
_FRACTION_BITS = tl.constexpr(FRACTION_BITS)
_FRACTION_MASK = tl.constexpr(2**FRACTION_BITS - 1)
_FRACTION_STEP = tl.constexpr(FRACTION_STEP)
_FIRST_PIECE = tl.constexpr(FIRST_PIECE)
_STEP = tl.constexpr(STEP)


@triton.jit(do_not_specialize=SIZES)
def change_points(
    out, work, channels, values, cubes, seeds, pieces, num_voxels, num_channels, nx, ny, nz, INNER: tl.constexpr
):
    """Bias, noise and, unless a blur comes first, brightness. Programs: (chunks of 1024 voxels, channels of the list).

    A program makes one Philox call per lane, which gives the bits for the four voxels that the lane holds.

    Args:
        out: as in `triton_frame`.
        work: as there.
        channels: (n,) int32, the list.
        values: (b * c, 8) float32, `VALUE_NAMES`.
        cubes: (b * c, 64) float32, `params.coefficient_cube`; not read where no channel of the list has a bias.
        seeds: (b,) int64.
        pieces: (n,) int32, `noise.PIECES`.
        num_voxels: nx * ny * nz.
        num_channels: c.
        nx: of the patch.
        ny: of the patch.
        nz: of the patch.
        INNER: as in `triton_frame`.
    """
    channel, _, is_last = _listed(channels + tl.program_id(1))
    value = values + channel * _NUM_VALUES
    std, scale, shift = tl.load(value), tl.load(value + 1), tl.load(value + 2)
    has_bias = tl.load(value + 3) != 0.0
    if tl.load(value + 7) != 0.0:
        scale, shift = 1.0, 0.0
    lane = tl.arange(0, _LANES)
    chunk = tl.program_id(0)
    call = chunk * _LANES + lane
    seed = tl.load(seeds + channel // num_channels)
    number = (channel % num_channels).to(tl.int32)
    w0, w1, w2, w3 = tl.philox(seed, call, call * 0 + number, call * 0, call * 0, n_rounds=_ROUNDS)
    for part in tl.static_range(4):
        if part == 0:
            word = w0
        elif part == 1:
            word = w1
        elif part == 2:
            word = w2
        else:
            word = w3
        t = chunk * 4 * _LANES + part * _LANES + lane
        in_patch = t < num_voxels
        v = tl.load(work + channel * num_voxels + t, mask=in_patch, other=0.0)
        if has_bias:
            v *= tl.exp(_field(cubes + channel * 64, t, nx, ny, nz))
        v += std * _normal(word, pieces)
        _put(out, work, channel, is_last, num_voxels, t, v * scale + shift, in_patch, INNER)


@triton.jit(do_not_specialize=SIZES)
def blur_along(
    source, out, target, channels, taps, radii, values, num_taps, side, inner, num_voxels,
    AXIS: tl.constexpr, ALIGN: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The blur along one axis, mirrored about the outermost voxels, and brightness with the last axis.

    Programs: (blocks of a channel, channels of the list).

    Args:
        source: (n, num_voxels) float32, scratch; along the first axis, `work`.
        out: as in `triton_frame`, written along the last axis.
        target: (n, num_voxels) float32, scratch other than `source`; along the last axis, `work`.
        channels: (n,) int32, the list.
        taps: (n, 3, num_taps) float32, `params.blur_weights` of each axis.
        radii: (n, 3) int32.
        values: (b * c, 8) float32, `VALUE_NAMES`.
        num_taps: of the widest kernel.
        side: voxels along the axis.
        inner: distance of neighbors along the axis.
        num_voxels: of a channel.
        AXIS: 0, 1 or 2.
        ALIGN: a power of two that divides nz, for loads of that many voxels.
        INNER: as in `triton_frame`.
        BLOCK: voxels of a program.
    """
    place = tl.program_id(1).to(tl.int64)
    channel, _, is_last = _listed(channels + place)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_patch = t < num_voxels
    source += (channel if AXIS == 0 else place) * num_voxels
    radius = tl.load(radii + place * 3 + AXIS)
    weights = taps + (place * 3 + AXIS) * num_taps
    if AXIS == 2:  # noqa: SIM108 - decided by the compiler
        inner = 1
    else:
        inner = inner // ALIGN * ALIGN
    at = t // inner % side
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(2 * radius + 1):
        from_start = tl.abs(at + tap - radius)
        other = tl.minimum(from_start, 2 * (side - 1) - from_start)
        total += tl.load(weights + tap) * tl.load(source + (t + (other - at) * inner), mask=in_patch, other=0.0)
    if AXIS == 2:
        value = values + channel * _NUM_VALUES
        total = total * tl.load(value + 1) + tl.load(value + 2)
        _put(out, target, channel, is_last, num_voxels, t, total, in_patch, INNER)
    else:
        tl.store(target + place * num_voxels + t, total, mask=in_patch)


@triton.jit
def _normal(word, pieces):
    """`noise.normal_of` of words of 32 bits."""
    signed = word.to(tl.int32, bitcast=True)
    bits = ((signed & 0x7FFFFFFF) | 1).to(tl.float32).to(tl.int32, bitcast=True)
    piece = pieces + ((bits >> _FRACTION_BITS) - _FIRST_PIECE)
    fraction = (bits & _FRACTION_MASK).to(tl.float32) * _FRACTION_STEP
    first = tl.load(piece)
    steps = first + ((tl.load(piece + 1) - first).to(tl.float32) * fraction).to(tl.int32)
    sign = signed >> 31
    return ((steps ^ sign) - sign).to(tl.float32) * _STEP


@triton.jit
def _field(cube, t, nx, ny, nz):
    """The logarithm of the bias field at voxels t: products of Legendre polynomials of degree up to 3 in all."""
    x1, x2, x3 = _legendre(t // (ny * nz), nx)
    y1, y2, y3 = _legendre(t // nz % ny, ny)
    z1, z2, z3 = _legendre(t % nz, nz)
    x, y, z = (x1 * 0.0 + 1.0, x1, x2, x3), (y1 * 0.0 + 1.0, y1, y2, y3), (z1 * 0.0 + 1.0, z1, z2, z3)
    total = x1 * 0.0
    for a in tl.static_range(4):
        for b in tl.static_range(4 - a):
            for c in tl.static_range(4 - a - b):
                total += tl.load(cube + (16 * a + 4 * b + c)) * (x[a] * y[b] * z[c])
    return total


@triton.jit
def _legendre(index, side):
    """Degrees 1 to 3 at voxels of an axis that runs from -1 to 1; at its middle if it has one voxel."""
    t = (2 * index - (side - 1)).to(tl.float32) / tl.maximum(side - 1, 1).to(tl.float32)
    return t, (3.0 * t * t - 1.0) * 0.5, (5.0 * t * t - 3.0) * t * 0.5
