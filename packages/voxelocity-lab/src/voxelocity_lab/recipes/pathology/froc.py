"""Lesions, and how they are scored, by the rules of CAMELYON16.

Pixels of the truth that are tumor are joined where they are less than 75 micrometers apart: they grow by half of
that, holes are filled, and each group is a lesion, with what it has grown. A lesion shorter than 275 micrometers along
its longer axis is a group of isolated tumor cells: finding it counts neither as a hit nor as a false positive. A
detection is a point with a probability: a hit if it lies in a lesion, whose most probable detection counts. The score
is the mean share of lesions found at 1/4, 1/2, 1, 2, 4 and 8 false positives a slide, linear between the thresholds
(https://camelyon16.grand-challenge.org/Evaluation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from voxelocity_lab.recipes.pathology.annotations import Mask

JOIN_MICROMETERS, SMALL_MICROMETERS = 75.0, 275.0
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives a slide at which the share of lesions found is averaged."""

Detection = tuple[float, float, float]
"""Probability, x and y, in pixels of the finest level."""


@dataclass(frozen=True, kw_only=True)
class Lesions:
    """The lesions of a slide.

    Attributes:
        labels: (y, x) int: 0 for none, else the number of the lesion.
        downsample: of `labels`.
        small: numbers of groups of isolated tumor cells.
    """

    labels: npt.NDArray[np.int32]
    downsample: float
    small: frozenset[int]

    @property
    def num_counted(self) -> int:
        """Lesions that are to be found."""
        return int(self.labels.max(initial=0)) - len(self.small)


@dataclass(frozen=True, kw_only=True)
class SlideHits:
    """What the detections of a slide hit.

    Attributes:
        false: probabilities of those that hit no lesion.
        hits: the highest probability for each lesion that is to be found; 0 for one that is missed.
    """

    false: tuple[float, ...]
    hits: tuple[float, ...]


def lesions_of(mask: Mask, *, downsample: float, micrometers: float) -> Lesions:
    """Lesions of the mask of a slide.

    Args:
        mask: (y, x), tumor.
        downsample: of the mask.
        micrometers: width of a pixel of the finest level.
    """
    width = micrometers * downsample
    # Both edges of a gap grow by half of it.
    grown = ndimage.distance_transform_edt(~mask) < JOIN_MICROMETERS / (2.0 * width) if mask.any() else mask
    joined, num = ndimage.label(ndimage.binary_fill_holes(grown | mask), structure=np.ones((3, 3)))
    labels = joined.astype(np.int32)
    small = {number for number in range(1, num + 1) if _length(labels == number) * width < SMALL_MICROMETERS}
    return Lesions(labels=labels, downsample=downsample, small=frozenset(small))


def _length(mask: Mask) -> float:
    """The longer axis, in pixels, of the ellipse with the moments of an area."""
    positions = np.argwhere(mask).astype(np.float64)
    # Of a square pixel itself: 1/12.
    spread = np.cov(positions.T, bias=True).reshape(2, 2) + np.eye(2) / 12.0 if len(positions) else np.zeros((2, 2))
    return 4.0 * math.sqrt(max(float(np.linalg.eigvalsh(spread)[-1]), 0.0))


def match(detections: Sequence[Detection], lesions: Lesions) -> SlideHits:
    """Which lesions of a slide its detections hit."""
    best: dict[int, float] = {}
    false = []
    height, width = lesions.labels.shape
    for probability, x, y in detections:
        row, column = int(y / lesions.downsample), int(x / lesions.downsample)
        is_inside = 0 <= row < height and 0 <= column < width
        number = int(lesions.labels[row, column]) if is_inside else 0
        if number == 0:
            false.append(probability)
        elif number not in lesions.small:
            best[number] = max(best.get(number, 0.0), probability)
    counted = set(range(1, int(lesions.labels.max(initial=0)) + 1)) - lesions.small
    return SlideHits(false=tuple(false), hits=tuple(best.get(number, 0.0) for number in sorted(counted)))


def froc(found: Sequence[SlideHits]) -> dict[float, float]:
    """The share of lesions found at each of `RATES`, over some slides; their mean is the score. Empty without lesions.

    Linear between the points of all thresholds, after (0, 0); of points with equal rates, the last one counts.
    """
    false = np.array([probability for slide in found for probability in slide.false])
    hits = np.array([probability for slide in found for probability in slide.hits])
    if not len(hits):
        return {}
    curve = {0.0: 0.0}
    for threshold in np.unique(np.concatenate([false, hits[hits > 0.0]]))[::-1]:
        curve[float((false >= threshold).sum()) / len(found)] = float((hits >= threshold).mean())
    shares = np.interp(RATES, list(curve), list(curve.values()))
    return dict(zip(RATES, shares.tolist(), strict=True))
