"""Compiled loops that add the numbers of `noise` to a patch, in place on C-contiguous float32, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel
from voxelocity.data.augment.noise import (
    BLOCKS_PER_CHUNK,
    CHUNK_VOXELS,
    FIRST_PIECE,
    FRACTION_BITS,
    FRACTION_STEP,
    KEY_STEPS,
    MULTIPLIERS,
    PIECES,
    ROUNDS,
    STEP,
)

_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint32(KEY_STEPS[0]), np.uint32(KEY_STEPS[1])
_HALF_WORD = np.uint64(32)
_FRACTION_BITS, _FRACTION_MASK = np.uint32(FRACTION_BITS), np.uint32(2**FRACTION_BITS - 1)
_FIRST_PIECE, _ONE = np.uint32(FIRST_PIECE), np.uint32(1)
_FRACTION_STEP, _STEP = np.float32(FRACTION_STEP), np.float32(STEP)
_PROBABILITY, _SIGN_BIT = np.uint32(0x7FFFFFFF), np.int32(31)


@inlined
def _draw_words(words: Any, start: Any, seed: Any, number: Any) -> None:
    """The bits of a channel's numbers for the chunk that begins at voxel `start`."""
    for b in range(BLOCKS_PER_CHUNK):
        w0, w1 = np.uint32(start // 4 + b), np.uint32(number)
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


@inlined
def _make_normal(words: Any, beyond: Any, numbers: Any) -> None:
    """Computes `noise.normal_of` for the words of a chunk, in units of `STEP`. `beyond` is scratch."""
    # Numba computes with 32-bit integers in 64 bits; each cast back lets the loop take twice as many lanes.
    signed, bits = words.view(np.int32), beyond.view(np.uint32)
    for t in range(CHUNK_VOXELS):
        beyond[t] = np.float32(np.int32((words[t] & _PROBABILITY) | _ONE))
    for t in range(CHUNK_VOXELS):
        piece = np.uint32((bits[t] >> _FRACTION_BITS) - _FIRST_PIECE)
        fraction = np.float32(np.int32(bits[t] & _FRACTION_MASK)) * _FRACTION_STEP
        first = PIECES[piece]
        width = np.float32(np.int32(PIECES[np.uint32(piece + _ONE)] - first))
        steps = np.int32(first + np.int32(width * fraction))
        sign = np.int32(signed[t] >> _SIGN_BIT)
        numbers[t] = np.float32(np.int32((steps ^ sign) - sign))


@kernel
def add_noise(flat: Any, std: Any, seed: Any, number: Any) -> None:
    """Adds `std` times the numbers of `noise.standard_normal(seed, number, flat.size)`."""
    words = np.empty(CHUNK_VOXELS, np.uint32)
    beyond, numbers = np.empty(CHUNK_VOXELS, np.float32), np.empty(CHUNK_VOXELS, np.float32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        _draw_words(words, start, seed, number)
        _make_normal(words, beyond, numbers)
        for t in range(min(CHUNK_VOXELS, flat.size - start)):
            flat[start + t] += std * (_STEP * numbers[t])


@kernel
def add_rician(flat: Any, mean: Any, std: Any, seed: Any, number: Any, other: Any) -> None:
    """The magnitude, with noise of channel `number` in the real part and of channel `other` in the imaginary part."""
    words, beyond = np.empty(CHUNK_VOXELS, np.uint32), np.empty(CHUNK_VOXELS, np.float32)
    reals, imaginaries = np.empty(CHUNK_VOXELS, np.float32), np.empty(CHUNK_VOXELS, np.float32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        _draw_words(words, start, seed, number)
        _make_normal(words, beyond, reals)
        _draw_words(words, start, seed, other)
        _make_normal(words, beyond, imaginaries)
        for t in range(min(CHUNK_VOXELS, flat.size - start)):
            real = flat[start + t] + (mean + std * (_STEP * reals[t]))
            imaginary = mean + std * (_STEP * imaginaries[t])
            flat[start + t] = np.sqrt(real * real + imaginary * imaginary)
