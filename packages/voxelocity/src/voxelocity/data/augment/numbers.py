"""Random numbers, drawn separately from their use, for all samples of a batch at once; knows no effect.

A sample's numbers are the first words of the Philox stream of its own key. What each word is for depends only on the
channels and the patch, so a batch is a table of words: compared with its columns' probabilities and scaled to their
ranges as a whole, it gives every change as a slice.
`testing.draw_reference` draws the same numbers one sample after another.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.rng import first_words
from voxelocity.data.augment.params import Bools, Floats

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
_SHIFT = np.uint64(11)

Word = tuple[float, bool, float, float, float]
"""What a word is for: a column of `Layout`."""
NamedWords = Mapping[str, Sequence[Word]]


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
    rises: Bools
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

    def is_below(self, name: str) -> Bools:
        """Which choices of this name are made: (b, count)."""
        return self._is_below[:, self._slices[name]]

    def values(self, name: str) -> Doubles:
        """(b, count)."""
        return self._values[:, self._slices[name]]

    def words(self, name: str) -> Words:
        """(b, count)."""
        return self._words[:, self._slices[name]]

    def chosen(self, choice: str, values: str, shape: tuple[int, ...]) -> tuple[Bools, Floats]:
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


# In a flat (3, 3, 3) of the turns about x, y and z: their axis, cosines, and sines with either sign.
_AXIS, _FIRST, _SECOND, _MINUS, _PLUS = np.array(
    [
        [9 * axis + 3 * row + column for row, column in ((axis, axis), (i, i), (j, j), (i, j), (j, i))]
        for axis in range(3)
        for i, j in [((axis + 1) % 3, (axis + 2) % 3)]
    ]
).T


def rotations(angles_rad: Doubles) -> Doubles:
    """The rotations (n, 3, 3) about x, then y, then z, each from the next axis toward the one after it."""
    cos, sin = np.cos(angles_rad), np.sin(angles_rad)
    flat = np.zeros((len(angles_rad), 27))
    flat[:, _AXIS] = 1.0
    flat[:, _FIRST] = flat[:, _SECOND] = cos
    flat[:, _MINUS], flat[:, _PLUS] = -sin, sin
    turns = flat.reshape(-1, 3, 3, 3)
    made: Doubles = turns[:, 2] @ (turns[:, 1] @ turns[:, 0])
    return made
