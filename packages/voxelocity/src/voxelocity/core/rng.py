"""The only source of randomness: a counter-based generator (Philox) keyed by (seed, epoch, case, draw, stage).

The numbers depend only on the key: not on workers, cache tier, ranks or the point at which a run was resumed.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

`Numbers` are drawn separately from their use, for all samples of a batch at once. A sample's numbers are the first
words of the stream of its own key. What each word is for is a `Layout`, so a batch is a table of words: compared with
its columns' probabilities and scaled to their ranges as a whole, it gives every change as a slice.
`testing.draw_reference` draws the same numbers one sample after another.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from voxelocity.core.batch import Draw

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float32]
_SHIFT = np.uint64(11)

Word = tuple[float, bool, float, float, float]
"""What a word is for: a column of `Layout`."""
NamedWords = Mapping[str, Sequence[Word]]


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


def first_words(seed: int, *, stage: str, keys: Sequence[tuple[int, int, int]], num_words: int) -> Words:
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


def choice(probability: float, *, rises: bool = True) -> Word:
    """A word that chooses with a probability, which rises with the epochs of a ramp."""
    return (probability, rises, 0.0, 1.0, 1.0)


def value(ends: tuple[float, float], factor: float = 1.0) -> Word:
    """A word that is a number of a range, times a factor."""
    return (0.0, False, ends[0], ends[1] - ends[0], factor)


@dataclass(frozen=True, eq=False)
class Layout:
    """What each word of a sample is for, in the order in which they are drawn.

    Every number is drawn, used or not, so that changing one probability does not affect the other changes.

    Attributes:
        slices: by name.
        limit: (n,), the probability that a choice is made, of words that choose.
        rises: (n,) bool, whether that probability rises with the epochs.
        low: (n,), the lower end of the range, of words that are values.
        span: (n,), from there to the upper end.
        factor: (n,), of the result.
    """

    slices: dict[str, slice]
    limit: Doubles
    rises: _Bools
    low: Doubles
    span: Doubles
    factor: Doubles

    @classmethod
    def of(cls, words: NamedWords) -> Self:
        """The layout of these words, name after name."""
        slices, start = {}, 0
        for name, columns in words.items():
            slices[name] = slice(start, start + len(columns))
            start += len(columns)
        limit, rises, low, span, factor = np.array([*itertools.chain(*words.values())]).T
        return cls(slices, limit, rises != 0.0, low, span, factor)


class Numbers:
    """The words of a batch (b, n), as choices and as values.

    Args:
        draws: one per sample.
        seed: of the run.
        stage: of the stream.
        layout: of its words.
        ramp_epochs: as in `AugmentConfig`.
    """

    def __init__(self, draws: Sequence[Draw], *, seed: int, stage: str, layout: Layout, ramp_epochs: int) -> None:
        keys = [(draw.epoch, draw.case, draw.draw) for draw in draws]
        self._words = first_words(seed, stage=stage, keys=keys, num_words=len(layout.limit))
        self._slices = layout.slices
        # As NumPy's generators make numbers from 0 to 1, and `Generator.uniform` those between two ends.
        numbers = (self._words >> _SHIFT).astype(np.float64) * 2.0**-53
        self._values = (layout.low + layout.span * numbers) * layout.factor
        limit = layout.limit
        if any(draw.epoch < ramp_epochs for draw in draws):
            shares = np.array([min(1.0, draw.epoch / ramp_epochs) for draw in draws])
            limit = np.where(layout.rises, shares[:, None] * limit, limit)
        self._is_below = numbers < limit

    def is_below(self, name: str) -> _Bools:
        """Which choices of this name are made: (b, count)."""
        return self._is_below[:, self._slices[name]]

    def values(self, name: str) -> Doubles:
        """(b, count)."""
        return self._values[:, self._slices[name]]

    def words(self, name: str) -> Words:
        """(b, count)."""
        return self._words[:, self._slices[name]]

    def chosen(self, choice: str, values: str, shape: tuple[int, ...]) -> tuple[_Bools, _Floats]:
        """Which samples are chosen (b,), and their values (b, *shape), 0 for the others."""
        is_chosen, found = self.is_below(choice)[:, 0], np.zeros((len(self._words), *shape), np.float32)
        if is_chosen.any():
            found[is_chosen] = self.values(values)[is_chosen].reshape(-1, *shape)
        return is_chosen, found

    def one_to_three(self, name: str) -> npt.NDArray[np.int64]:
        """As `Generator.integers(1, 4, size=3)`, from the first three halves of two words: (b, 3).

        NumPy draws a half again if it is 0, which happens once in 4 billion times; here it then is 1.
        """
        words, mask, half = self.words(name), np.uint64(0xFFFFFFFF), np.uint64(32)
        halves = np.stack([words[:, 0] & mask, words[:, 0] >> half, words[:, 1] & mask], axis=1)
        return (1 + (halves * np.uint64(3) >> half)).astype(np.int64)

    def below_int64_max(self, name: str) -> npt.NDArray[np.int64]:
        """As `Generator.integers(2**63 - 1)`, from a word each: the upper half of their product with 2**63 - 1, (b,).

        NumPy draws again in two of 2**64 cases.
        """
        return np.array([word * (2**63 - 1) >> 64 for word in self.words(name)[:, 0].tolist()], dtype=np.int64)
