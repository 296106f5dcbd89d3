"""Functions of numbers that Numba inlines into loops: logarithm, power of two, noise. Nothing here holds the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined
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

# Minimax-like polynomials (Chebyshev fits of ours) for log2(1 + t) / t on 1 + t in [sqrt(1/2), sqrt(2)], off by at
# most 5e-8, and 2**t on [-1/2, 1/2], off by 2e-9. They vectorize, while calls of the C library's powf do not.
_LOG2 = tuple(
    np.float32(value)
    for value in (
        1.4426950216293335,
        -0.7213473320007324,
        0.48091059923171997,
        -0.36070483922958374,
        0.2879183292388916,
        -0.23892034590244293,
        0.21566985547542572,
        -0.20742103457450867,
        0.12614846229553223,
    )
)
_EXP2 = tuple(
    np.float32(value)
    for value in (
        1.0,
        0.6931471824645996,
        0.24022650718688965,
        0.05550327152013779,
        0.00961802527308464,
        0.0013400432653725147,
        0.00015469732170458883,
    )
)
_LOG2_E = np.float32(1.4426950408889634)
# Of the noise, as `noise` defines it.
_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint32(KEY_STEPS[0]), np.uint32(KEY_STEPS[1])
_HALF_WORD = np.uint64(32)
_FRACTION_BITS, _FRACTION_MASK = np.uint32(FRACTION_BITS), np.uint32(2**FRACTION_BITS - 1)
_FIRST_PIECE, _ONE = np.uint32(FIRST_PIECE), np.uint32(1)
_FRACTION_STEP, NOISE_STEP = np.float32(FRACTION_STEP), np.float32(STEP)
_PROBABILITY, _SIGN_BIT = np.uint32(0x7FFFFFFF), np.int32(31)


@inlined
def log2(value: Any) -> Any:
    """Of a positive float32."""
    # The bits of sqrt(1/2): anything above it goes into the exponent.
    bits = np.int32(np.float32(value).view(np.int32) - np.int32(0x3F3504F3))
    exponent = bits >> np.int32(23)
    mantissa = np.int32((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    t = mantissa - np.float32(1.0)
    total = _LOG2[8]
    total = total * t + _LOG2[7]
    total = total * t + _LOG2[6]
    total = total * t + _LOG2[5]
    total = total * t + _LOG2[4]
    total = total * t + _LOG2[3]
    total = total * t + _LOG2[2]
    total = total * t + _LOG2[1]
    total = total * t + _LOG2[0]
    return np.float32(exponent) + total * t


@inlined
def exp2(value: Any) -> Any:
    """Of a float32 between -126 and 127."""
    whole = np.int32(np.floor(value + np.float32(0.5)))
    t = value - np.float32(whole)
    total = _EXP2[6]
    total = total * t + _EXP2[5]
    total = total * t + _EXP2[4]
    total = total * t + _EXP2[3]
    total = total * t + _EXP2[2]
    total = total * t + _EXP2[1]
    total = total * t + _EXP2[0]
    return total * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@inlined
def draw_words(words: Any, start: Any, seed: Any, number: Any) -> None:
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
def make_normal(words: Any, beyond: Any, numbers: Any) -> None:
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
