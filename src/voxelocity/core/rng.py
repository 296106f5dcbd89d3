"""The only source of randomness: a counter-based generator (Philox) keyed by (seed, epoch, case, draw, stage).

The numbers depend only on the key: not on workers, cache tier, ranks or the point at which a run was resumed.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np


def generator(seed: int, *, stage: str, epoch: int = 0, case: int = 0, draw: int = 0) -> np.random.Generator:
    """A fresh generator for this key.

    Args:
        seed: of the run, 0 to 2**63 - 1.
        stage: what the numbers are for ("patch", "augment", ...); stages never share numbers.
        epoch: pass over the cases, from 0.
        case: index of the case within the sorted training cases, from 0.
        draw: patch of that case within the epoch, from 0.
    """
    # The counter's lowest word is the generator's own block number and stays 0, so no two keys overlap.
    # As uint64: in a list of plain integers NumPy would round those of 2**63 and above to the nearest float64.
    key, counter = (np.array(words, dtype=np.uint64) for words in ([seed, _stage_word(stage)], [0, draw, case, epoch]))
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@functools.cache
def _stage_word(stage: str) -> int:
    return int.from_bytes(hashlib.blake2b(stage.encode(), digest_size=8).digest(), "little")
