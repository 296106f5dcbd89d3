"""Standard normal numbers by position: a voxel's number depends only on (seed, channel, its index).

Philox-4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; seven rounds pass BigCrush) gives
a word of 32 bits for each number: a sign, and the probability that lies beyond the number, from 2**-32 to 0.5. The
inverse of the normal distribution turns it into a number of up to 6.23 standard deviations, one of more than 2**23 on
each side. The inverse is a table of 64 pieces for each octave of probability, linear between its entries and off by
less than 2e-5. It uses integers except for one product, which all engines round in the same way, so their noise agrees
bit for bit.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCKS_PER_CHUNK = 256
"""Philox calls for a chunk of voxels: each call gives 4 words, each word a number."""
CHUNK_VOXELS = 4 * BLOCKS_PER_CHUNK
ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
FRACTION_BITS = 17
"""Of a float32 mantissa's 23 bits: where in its piece of the table a probability lies. The others select the piece."""
FIRST_PIECE = 127 << (23 - FRACTION_BITS)
"""The bits of float32 1.0 without those of the fraction: they select the piece of the smallest probability."""
FRACTION_STEP = 2.0**-FRACTION_BITS
STEP = 2.0**-28
"""Numbers are multiples of this before they are rounded to float32."""
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _pieces() -> npt.NDArray[np.int32]:
    """The numbers at the ends of the pieces, in steps: first the largest, last 0."""
    ends = np.arange(FIRST_PIECE, (158 << (23 - FRACTION_BITS)) + 2, dtype=np.int32) << np.int32(FRACTION_BITS)
    # The last one is beyond probability 0.5; its piece is only used at its start.
    probabilities = np.minimum(ends.view(np.float32).astype(np.float64) * 2.0**-32, 0.5)
    # From the standard library, as importing SciPy takes 0.1 s of every start.
    numbers = -np.array([NormalDist().inv_cdf(probability) for probability in probabilities.tolist()])
    steps: npt.NDArray[np.int32] = np.rint(numbers / STEP).astype(np.int32)
    return steps


PIECES: Final = _pieces()
PIECES.flags.writeable = False


def standard_normal(seed: int, channel: int, num_voxels: int) -> npt.NDArray[np.float32]:
    """The numbers of voxels 0 to `num_voxels - 1` (C order) of a channel. The reference for all engines.

    Number t of a chunk of 1024 comes from word `t // 256` of Philox call `chunk * 256 + t % 256`.
    """
    num_chunks = -(-num_voxels // CHUNK_VOXELS)
    words = philox(seed, channel, np.arange(num_chunks * BLOCKS_PER_CHUNK, dtype=np.uint64))
    words = words.reshape(4, num_chunks, BLOCKS_PER_CHUNK).transpose(1, 0, 2).reshape(-1)
    return normal_of(words[:num_voxels].astype(np.uint32))


def normal_of(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """The number that each word stands for: the highest bit is the sign, the others the probability beyond it."""
    # An odd multiple of 2**-32, rounded to a float32 whose exponent is the octave.
    beyond = ((words & np.uint32(0x7FFFFFFF)) | np.uint32(1)).astype(np.float32).view(np.int32)
    piece = (beyond >> FRACTION_BITS) - FIRST_PIECE
    fraction = (beyond & (2**FRACTION_BITS - 1)).astype(np.float32) * np.float32(FRACTION_STEP)
    width = (PIECES[piece + 1] - PIECES[piece]).astype(np.float32)
    steps = PIECES[piece] + (width * fraction).astype(np.int32)
    sign = words.view(np.int32) >> 31
    numbers: npt.NDArray[np.float32] = ((steps ^ sign) - sign).astype(np.float32) * np.float32(STEP)
    return numbers


def philox(seed: int, channel: int, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The four words of each call: (4, n), each below 2**32. The counter is (block, channel, 0, 0)."""
    zeros = np.zeros_like(blocks)
    counter = [blocks & _WORD, zeros + np.uint64(channel), zeros, zeros]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64((seed >> 32) & 0xFFFFFFFF)]
    first, second = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
    for _ in range(ROUNDS):
        low, high = first * counter[0], second * counter[2]
        counter = [
            (high >> _HALF) ^ counter[1] ^ key[0],
            high & _WORD,
            (low >> _HALF) ^ counter[3] ^ key[1],
            low & _WORD,
        ]
        key = [(word + np.uint64(step)) & _WORD for word, step in zip(key, KEY_STEPS, strict=True)]
    return np.stack(counter)
