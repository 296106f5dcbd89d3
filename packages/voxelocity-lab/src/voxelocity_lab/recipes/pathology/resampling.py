"""AUCs over all pieces together with intervals, by drawing whole patients or slides again: patches of one are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.pathology.dataset import Piece
from voxelocity_lab.recipes.pathology.score import Rated
from voxelocity_observe.core.quantities import count_text

_Float64 = npt.NDArray[np.float64]
_NUM_DRAWS, _SHARE = 2000, 0.95
# Fewer have too few different draws.
_LEAST_UNITS = 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An AUC, or a difference of two, with its 95 % interval (percentile bootstrap).

    Attributes:
        value: NaN where a class is missing.
        low: NaN where too few units could be drawn again.
        high: likewise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def text(self) -> str:
        """As "0.935 (0.915 to 0.952)"."""
        if math.isnan(self.value):
            return "n/a"
        interval = "" if math.isnan(self.low) else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.value:.3f}{interval}"


Kinds = tuple[Estimate, Estimate]
"""Of patches, and of squares of heat maps."""


def units_of(pieces: Sequence[Piece]) -> tuple[list[int], str]:
    """What is drawn again: the number of its unit for each piece, and what the units are, as "50 slides".

    Patients where names or tables tell of several slides of one; slides if there are too few patients, and else pieces.
    """
    slides = [str(piece.slide) for piece in pieces]
    kinds = {
        "patient": [piece.patient or slide for piece, slide in zip(pieces, slides, strict=True)],
        "slide": slides,
        "piece": [piece.name for piece in pieces],
    }
    if len(set(kinds["patient"])) == len(set(slides)):
        del kinds["patient"]
    word = next((word for word, names in kinds.items() if len(set(names)) >= _LEAST_UNITS), "piece")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(kinds[word]))}
    return [numbers[name] for name in kinds[word]], count_text(len(numbers), word)


def drawn_aucs(rated: Sequence[Rated], units: Sequence[int]) -> _Float64:
    """The AUC of all ratings together, and, of at least four units, that of each of 2,000 draws of as many units.

    Pairs of tumor and other tissue are counted once for each two units; a draw weighs them by how often it has both.
    Draws depend on the number of units alone, so they pair those of several raters.
    """
    num = max(units, default=-1) + 1
    scores = np.concatenate([np.zeros(0), *(scores for scores, _ in rated)])
    tumor = np.concatenate([np.zeros(0, bool), *(is_tumor for _, is_tumor in rated)])
    unit = np.repeat(np.asarray(units, int), [len(scores) for scores, _ in rated])
    wins = np.zeros((num, num))
    for column in range(num):
        others = np.sort(scores[(unit == column) & ~tumor])
        below = sum(np.searchsorted(others, scores[tumor], side=side) for side in ("left", "right")) / 2.0
        wins[:, column] = np.bincount(unit[tumor], weights=below, minlength=num)
    counts = np.ones((1 + (_NUM_DRAWS if num >= _LEAST_UNITS else 0), num))
    if len(counts) > 1:
        drawn = generator(0, stage="bootstrap").integers(num, size=(_NUM_DRAWS, num))
        counts[1:] = [np.bincount(numbers, minlength=num) for numbers in drawn]
    pairs = (counts @ np.bincount(unit[tumor], minlength=num)) * (counts @ np.bincount(unit[~tumor], minlength=num))
    won = ((counts @ wins) * counts).sum(axis=1)
    return np.where(pairs > 0.0, won / np.maximum(pairs, 1.0), math.nan)


def estimate(drawn: _Float64) -> Estimate:
    """The first value, and the interval of the others."""
    known = drawn[1:][np.isfinite(drawn[1:])]
    if not len(known):
        return Estimate(value=float(drawn[0]))
    low, high = np.quantile(known, [(1.0 - _SHARE) / 2.0, (1.0 + _SHARE) / 2.0]).tolist()
    return Estimate(value=float(drawn[0]), low=low, high=high)


def judge(
    rated: Mapping[str, tuple[Sequence[Rated], Sequence[Rated]]], units: Sequence[int]
) -> tuple[dict[str, Kinds], dict[str, Kinds]]:
    """The AUC of each rater, and by how much that of the first is higher than those of the others.

    Args:
        rated: ratings of patches and of squares of each piece, by rater.
        units: of each piece.
    """
    drawn = {name: tuple(drawn_aucs(kind, units) for kind in kinds) for name, kinds in rated.items()}
    first, *others = drawn
    aucs = {name: (estimate(kinds[0]), estimate(kinds[1])) for name, kinds in drawn.items()}
    gains = {
        name: (estimate(drawn[first][0] - drawn[name][0]), estimate(drawn[first][1] - drawn[name][1]))
        for name in others
    }
    return aucs, gains
