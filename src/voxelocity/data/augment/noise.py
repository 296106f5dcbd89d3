"""Standard normal numbers by position: which one a voxel gets depends on (seed, channel, its index) alone.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) gives the bits; twelve of them
pick one of 4096 equally likely values, the normal quantiles, scaled to a variance of exactly one. All engines compute
the same integers, so their noise agrees bit for bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

NUM_LEVELS = 4096
BITS_PER_LEVEL = 12
BLOCKS_PER_CHUNK = 256
"""Philox calls for a chunk of voxels: each gives 4 words, each word 2 numbers."""
CHUNK_VOXELS = 8 * BLOCKS_PER_CHUNK
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _quantiles() -> npt.NDArray[np.float32]:
    levels = ndtri((np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS)
    table: npt.NDArray[np.float32] = (levels / levels.std()).astype(np.float32)
    return table


QUANTILES: Final = _quantiles()
QUANTILES.flags.writeable = False


def standard_normal(seed: int, channel: int, num_voxels: int) -> npt.NDArray[np.float32]:
    """The numbers of voxels 0 to `num_voxels - 1` (C order) of a channel. The reference of all engines.

    Number t of a chunk of 2048 takes its bits from word `t % 1024 // 256` of Philox call `chunk * 256 + t % 256`: the
    lowest twelve for the first 1024 numbers, the next twelve for the others.
    """
    num_chunks = -(-num_voxels // CHUNK_VOXELS)
    words = philox(seed, channel, np.arange(num_chunks * BLOCKS_PER_CHUNK, dtype=np.uint64))
    words = words.reshape(4, num_chunks, BLOCKS_PER_CHUNK).transpose(1, 0, 2).reshape(num_chunks, -1)
    mask = np.uint64(NUM_LEVELS - 1)
    levels = np.concatenate([words & mask, (words >> np.uint64(BITS_PER_LEVEL)) & mask], axis=1)
    return QUANTILES[levels.reshape(-1)[:num_voxels].astype(np.int64)]


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
