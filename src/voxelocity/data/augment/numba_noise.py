"""Compiled loops that add the numbers of `noise` to a patch, in place on C-contiguous float32. They hold no GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel
from voxelocity.data.augment.noise import (
    BITS_PER_LEVEL,
    BLOCKS_PER_CHUNK,
    CHUNK_VOXELS,
    KEY_STEPS,
    MULTIPLIERS,
    NUM_LEVELS,
    QUANTILES,
    ROUNDS,
)

_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint32(KEY_STEPS[0]), np.uint32(KEY_STEPS[1])
_HALF_WORD = np.uint64(32)
_LEVEL_MASK = np.uint32(NUM_LEVELS - 1)
_LEVEL_BITS = np.uint32(BITS_PER_LEVEL)
_HALF_CHUNK = CHUNK_VOXELS // 2


@inlined
def _draw_words(words: Any, start: Any, seed: Any, number: Any) -> None:
    """The bits of the numbers of a chunk, which begins at voxel `start`, of a channel."""
    for b in range(BLOCKS_PER_CHUNK):
        w0, w1 = np.uint32(start // 8 + b), np.uint32(number)
        w2 = w3 = np.uint32(0)
        k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
        for _ in range(ROUNDS):
            low, high = _FIRST * np.uint64(w0), _SECOND * np.uint64(w2)
            w0 = np.uint32(high >> _HALF_WORD) ^ w1 ^ k0
            w1 = np.uint32(high)
            w2 = np.uint32(low >> _HALF_WORD) ^ w3 ^ k1
            w3 = np.uint32(low)
            k0, k1 = np.uint32(k0 + _KEY_STEP_0), np.uint32(k1 + _KEY_STEP_1)
        words[b] = w0
        words[BLOCKS_PER_CHUNK + b] = w1
        words[2 * BLOCKS_PER_CHUNK + b] = w2
        words[3 * BLOCKS_PER_CHUNK + b] = w3


@kernel
def add_noise(flat: Any, std: Any, seed: Any, number: Any) -> None:
    """Plus `std` times the numbers of `noise.standard_normal(seed, number, flat.size)`."""
    words = np.empty(4 * BLOCKS_PER_CHUNK, np.uint32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        _draw_words(words, start, seed, number)
        for t in range(min(_HALF_CHUNK, flat.size - start)):
            flat[start + t] += std * QUANTILES[words[t] & _LEVEL_MASK]
        second = start + _HALF_CHUNK
        for t in range(min(_HALF_CHUNK, flat.size - second)):
            flat[second + t] += std * QUANTILES[(words[t] >> _LEVEL_BITS) & _LEVEL_MASK]


@kernel
def add_rician(flat: Any, mean: Any, std: Any, seed: Any, number: Any, other: Any) -> None:
    """The magnitude with noise of channel `number` in the real part, and that of channel `other` in the imaginary."""
    words, others = np.empty(4 * BLOCKS_PER_CHUNK, np.uint32), np.empty(4 * BLOCKS_PER_CHUNK, np.uint32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        _draw_words(words, start, seed, number)
        _draw_words(others, start, seed, other)
        for half in range(2):
            first = start + half * _HALF_CHUNK
            bits = np.uint32(half) * _LEVEL_BITS
            for t in range(min(_HALF_CHUNK, flat.size - first)):
                real = flat[first + t] + (mean + std * QUANTILES[(words[t] >> bits) & _LEVEL_MASK])
                imaginary = mean + std * QUANTILES[(others[t] >> bits) & _LEVEL_MASK]
                flat[first + t] = np.sqrt(real * real + imaginary * imaginary)
