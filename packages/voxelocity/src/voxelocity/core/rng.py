"""The only source of randomness: a counter-based generator (Philox) keyed by (seed, epoch, case, draw, stage).

The numbers depend only on the key: not on workers, cache tier, ranks or the point at which a run was resumed.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


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


def first_words(
    seed: int, *, stage: str, keys: Sequence[tuple[int, int, int]], num_words: int
) -> npt.NDArray[np.uint64]:
    """The first numbers of several generators, as raw words: (keys, num_words), each row what `generator` begins with.

    Faster than making the generators: one is kept for each thread, and its state is set.

    Args:
        seed: as in `generator`.
        stage: as there.
        keys: epoch, case and draw of each generator.
        num_words: of each.
    """
    philox: np.random.Philox | None = getattr(_own, "philox", None)
    if philox is None:
        philox = _own.philox = np.random.Philox(0)
    key, nothing = np.array([seed, _stage_word(stage)], dtype=np.uint64), np.zeros(4, dtype=np.uint64)
    words = np.empty((len(keys), num_words), dtype=np.uint64)
    for row, (epoch, case, draw) in enumerate(keys):
        philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": np.array([0, draw, case, epoch], dtype=np.uint64), "key": key},
            "buffer": nothing,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        words[row] = philox.random_raw(num_words)
    return words


_own = threading.local()


@functools.cache
def _stage_word(stage: str) -> int:
    return int.from_bytes(hashlib.blake2b(stage.encode(), digest_size=8).digest(), "little")
