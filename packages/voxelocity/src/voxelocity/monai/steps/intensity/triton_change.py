"""Noise from a seed and blurs on a CUDA device. Programs are (blocks of a channel, channels)."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.noise import BLOCKS_PER_CHUNK, ROUNDS
from voxelocity.data.augment.triton_frame import SIZES
from voxelocity.data.augment.triton_intensity import _normal

BLUR_BLOCK: Final = 512
_LANES = tl.constexpr(BLOCKS_PER_CHUNK)
_ROUNDS = tl.constexpr(ROUNDS)


@triton.jit
def add_noise(patch, ints, means, stds, pieces, num_voxels, RICIAN: tl.constexpr):
    """`Noise` or `Rician` from a seed. A block is a chunk of 1024 voxels: each lane makes a call for four of them.

    Args:
        patch: (c, num_voxels) float32, changed in place.
        ints: (3,) int64: the seed, the channel of the second field's first numbers, and 0 if all channels take the
            numbers of the first one, else 1.
        means: (c,) float32.
        stds: (c,) float32.
        pieces: (n,) int32, `noise.PIECES`.
        num_voxels: of a channel.
        RICIAN: `Rician`; otherwise `Noise`.
    """
    channel = tl.program_id(1).to(tl.int64)
    seed = tl.load(ints)
    number = (channel * tl.load(ints + 2)).to(tl.int32)
    mean, std = tl.load(means + channel), tl.load(stds + channel)
    lane = tl.arange(0, _LANES)
    call = tl.program_id(0) * _LANES + lane
    words = tl.philox(seed, call, call * 0 + number, call * 0, call * 0, n_rounds=_ROUNDS)
    others = words
    if RICIAN:
        second = (channel + tl.load(ints + 1)).to(tl.int32)
        others = tl.philox(seed, call, call * 0 + second, call * 0, call * 0, n_rounds=_ROUNDS)
    for part in tl.static_range(4):
        t = tl.program_id(0) * 4 * _LANES + part * _LANES + lane
        in_patch = t < num_voxels
        at = patch + (channel * num_voxels + t)
        v = tl.load(at, mask=in_patch, other=0.0) + (mean + std * _normal(words[part], pieces))
        if RICIAN:
            other = mean + std * _normal(others[part], pieces)
            v = tl.sqrt(v * v + other * other)
        tl.store(at, v, mask=in_patch)


@triton.jit(do_not_specialize=SIZES)
def blur(source, target, weights, num_taps, side, inner, num_voxels, BLOCK: tl.constexpr):
    """`Blur` along one axis, with zeros beyond the patch.

    Args:
        source: (c, num_voxels) float32.
        target: likewise, in other memory.
        weights: (num_taps,) float32, an odd number.
        num_taps: how many.
        side: voxels along the axis.
        inner: distance of neighbors along the axis.
        num_voxels: of a channel.
        BLOCK: voxels of a program.
    """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_patch = t < num_voxels
    offset = tl.program_id(1).to(tl.int64) * num_voxels
    at = t // inner % side
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(num_taps):
        shift = tap - num_taps // 2
        is_there = in_patch & (at + shift >= 0) & (at + shift < side)
        voxel = tl.load(source + offset + (t + shift * inner), mask=is_there, other=0.0)
        total += tl.load(weights + tap) * voxel
    tl.store(target + offset + t, total, mask=in_patch)
