"""How good generated streamlines are: the space they fill, their shape, whether they are valid, and new.

`MEASURES` are what a model is judged by, next to what needs no training; each is a mean over bundles, with an interval
by drawing bundles again (bootstrap). Distances between distributions are Wasserstein's first one, in their own units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import wasserstein_distance

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.tractography.shapes import (
    Numbers,
    Points,
    as_ragged,
    curvature_per_mm,
    lengths_mm,
    nearest_mm,
    resample,
    turns_rad,
)

VOXEL_MM = 2.0
_STEP_MM = 0.5
# Half a voxel. Of the real streamlines of HCP1065, 1 % lie as near to one of the other half of their bundle.
COPY_MM = 1.0
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MIDDLE = _QUANTILES.index(0.5)
# A valid streamline. Turns: the default of MRtrix's `tckgen -angle` for deterministic tracking, and of DIPY's EuDX.
# Least length: five voxels of 2 mm, as `tckgen -minlength`. Most: as `max_length` of pyAFQ, because `tckgen -maxlength`
# (200 mm) would refuse 4 % of the real streamlines of HCP1065. Outside: further than a voxel from the mask.
MOST_TURN_DEGREES, LENGTHS_MM, MOST_OUTSIDE_MM = 60.0, (10.0, 250.0), VOXEL_MM
_NUM_DRAWS, _SHARE = 2000, 0.95


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Of the generated streamlines of a bundle.

    Attributes:
        key: field of `Judgment`.
        name: in words, with its unit.
        better: which way.
        digits: shown.
        factor: by which it is shown.
    """

    key: str
    name: str
    better: Literal["larger", "smaller"]
    digits: int = 3
    factor: float = 1.0


MEASURES = (
    Measure(key="overlap", name="overlap", better="larger"),
    Measure(key="overreach", name="overreach", better="smaller"),
    Measure(key="length_distance_mm", name="length, distance in mm", better="smaller", digits=1),
    Measure(
        key="curvature_distance_per_mm", name="curvature, distance in rad/m", better="smaller", digits=1, factor=1000.0
    ),
    Measure(key="turn_distance_degrees", name="turns, distance in degrees", better="smaller", digits=2),
    Measure(key="invalid", name="invalid, %", better="smaller", digits=1, factor=100.0),
)


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """Generated streamlines of a bundle against real ones.

    Attributes:
        num_real: streamlines they were compared with.
        num_generated: streamlines that were judged.
        overlap: share of the real ones' voxels that they fill.
        overreach: voxels they fill outside those, as a share of the real ones' voxels.
        f1: Dice of both sets of voxels.
        ceiling_f1: the same for as many real streamlines that the model was trained on; NaN if there are too few.
        length_mm: quantiles of their lengths, and of the real ones.
        curvature_per_mm: the same of their mean curvature.
        length_distance_mm: between the distributions of their lengths and of the real ones'.
        curvature_distance_per_mm: the same of their mean curvature, in rad/mm.
        turn_distance_degrees: the same of the angles at all their inner points.
        invalid: share that turns by more than `MOST_TURN_DEGREES` at a point, is shorter or longer than `LENGTHS_MM`,
            or has a point further than `MOST_OUTSIDE_MM` from the mask, if there is one.
        nearest_mm: median distance to the nearest streamline of the training; NaN if none of these is known.
        nearest_real_mm: the same of the real ones. Streamlines that are much nearer were memorized.
        copied: share that is nearer than `COPY_MM` to a streamline of the training.
        copied_real: the same of the real ones that they were compared with, which are not copies.
        outside: share of their points that lie outside the mask; NaN without one.
    """

    num_real: int
    num_generated: int
    overlap: float
    overreach: float
    f1: float
    ceiling_f1: float
    length_mm: tuple[Sequence[float], Sequence[float]]
    curvature_per_mm: tuple[Sequence[float], Sequence[float]]
    length_distance_mm: float
    curvature_distance_per_mm: float
    turn_distance_degrees: float
    invalid: float
    nearest_mm: float
    nearest_real_mm: float
    copied: float
    copied_real: float
    outside: float


def voxels_of(streamlines: Points) -> Numbers:
    """The voxels of 2 mm that streamlines (n, p, 3) pass through, as sorted unique numbers.

    The faces of voxels lie at multiples of their size in RAS. Streamlines are followed in steps of at most 0.5 mm.
    """
    if not len(streamlines):
        return np.empty(0, np.int64)
    points, offsets = as_ragged(streamlines)
    longest = float(lengths_mm(points, offsets).max(initial=0.0))
    dense = resample(points, offsets, max(2, int(np.ceil(longest / _STEP_MM)) + 1)).reshape(-1, 3)
    index = np.floor(dense.astype(np.float64) / VOXEL_MM).astype(np.int64) + (1 << 19)
    return np.unique((index[:, 0] << 40) | (index[:, 1] << 20) | index[:, 2])


def space_shared(generated: Points, real: Points) -> tuple[float, float, float]:
    """Overlap, overreach and F1 of the voxels that both pass through; NaN for the first two without real ones."""
    mine, theirs = voxels_of(generated), voxels_of(real)
    shared = len(np.intersect1d(mine, theirs, assume_unique=True))
    total = len(mine) + len(theirs)
    f1 = 2.0 * shared / total if total else float("nan")
    if not len(theirs):
        return float("nan"), float("nan"), f1
    return shared / len(theirs), (len(mine) - shared) / len(theirs), f1


def judge(generated: Points, real: Points, trained: Points, *, outside_mm: Numbers | None = None) -> Judgment:
    """Compares streamlines of one bundle.

    Args:
        generated: (n, p, 3), to judge.
        real: (m, p, 3) that the model has not seen.
        trained: (k, p, 3) that it was trained on.
        outside_mm: (n, p), how far each point lies from the mask; 0 inside.
    """
    overlap, overreach, f1 = space_shared(generated, real)
    chosen = np.random.default_rng(0).permutation(len(trained))[: len(generated)]
    ceiling = space_shared(trained[chosen], real)[2] if len(chosen) == len(generated) else float("nan")
    near = nearest_mm(generated, trained)
    near_real = nearest_mm(real, trained)
    turns = [np.degrees(turns_rad(streamlines)) for streamlines in (generated, real)]
    return Judgment(
        num_real=len(real),
        num_generated=len(generated),
        overlap=overlap,
        overreach=overreach,
        f1=f1,
        ceiling_f1=ceiling,
        length_mm=_spreads(generated, real, _length),
        curvature_per_mm=_spreads(generated, real, curvature_per_mm),
        length_distance_mm=_distance(_length(generated), _length(real)),
        curvature_distance_per_mm=_distance(curvature_per_mm(generated), curvature_per_mm(real)),
        turn_distance_degrees=_distance(*(part.ravel() for part in turns)),
        invalid=float(is_invalid(generated, outside_mm).mean()),
        nearest_mm=float(np.median(near)) if len(trained) else float("nan"),
        nearest_real_mm=float(np.median(near_real)) if len(trained) else float("nan"),
        copied=float((near < COPY_MM).mean()) if len(trained) else float("nan"),
        copied_real=float((near_real < COPY_MM).mean()) if len(trained) else float("nan"),
        outside=float("nan") if outside_mm is None else float((outside_mm > 0.0).mean()),
    )


def is_invalid(streamlines: Points, outside_mm: Numbers | None) -> Numbers:
    """(n), whether each kinks, is too short or too long, or leaves the mask by more than a voxel."""
    length = _length(streamlines)
    result = (length < LENGTHS_MM[0]) | (length > LENGTHS_MM[1])
    result |= (np.degrees(turns_rad(streamlines)) > MOST_TURN_DEGREES).any(axis=1)
    if outside_mm is not None:
        result |= (outside_mm > MOST_OUTSIDE_MM).any(axis=1)
    return result


def interval_of(values: Numbers) -> tuple[float, float]:
    """The 95 % interval of the mean, by drawing the values again 2,000 times (percentile bootstrap)."""
    if not len(values):
        return float("nan"), float("nan")
    drawn = generator(0, stage="bootstrap").integers(len(values), size=(_NUM_DRAWS, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1.0 - _SHARE) / 2.0, (1.0 + _SHARE) / 2.0]).tolist()
    return low, high


def is_better(measure: Measure, judgments: Sequence[Judgment], others: Sequence[Judgment]) -> bool:
    """Whether the judgments are better than others of the same bundles, by more than the interval of the difference."""
    pairs = zip(judgments, others, strict=True)
    gains = np.array([getattr(mine, measure.key) - getattr(other, measure.key) for mine, other in pairs])
    low, _ = interval_of(gains if measure.better == "larger" else -gains)
    return low > 0.0


def mean_of(judgments: Mapping[str, Judgment], *, least_real: int) -> dict[str, float]:
    """The mean figures over bundles with at least `least_real` real streamlines."""
    chosen = [judgment for judgment in judgments.values() if judgment.num_real >= least_real]
    names = (
        *(measure.key for measure in MEASURES), "f1", "ceiling_f1", "nearest_mm", "nearest_real_mm", "copied",
        "copied_real", "outside",
    )  # fmt: skip
    if not chosen:
        return dict.fromkeys(names, float("nan"))
    values = {name: np.array([getattr(judgment, name) for judgment in chosen]) for name in names}
    return {
        name: float("nan") if np.isnan(figures).all() else float(np.nanmean(figures))
        for name, figures in values.items()
    } | {"num_bundles": float(len(chosen)), **_mean_shapes(chosen)}


def _mean_shapes(judgments: Sequence[Judgment]) -> dict[str, float]:
    """Means of the median length and curvature, of generated streamlines and of real ones."""
    found = {}
    for name in ("length_mm", "curvature_per_mm"):
        for kind, part in (("", 0), ("real_", 1)):
            middles = [spread[part][_MIDDLE] for judgment in judgments if (spread := getattr(judgment, name))[part]]
            found[f"{kind}{name}"] = float(np.mean(middles)) if middles else float("nan")
    return found


def _length(streamlines: Points) -> Numbers:
    return lengths_mm(*as_ragged(streamlines))


def _distance(mine: Numbers, theirs: Numbers) -> float:
    return float(wasserstein_distance(mine, theirs)) if len(mine) and len(theirs) else float("nan")


def _spreads(generated: Points, real: Points, measure: Any) -> tuple[list[float], list[float]]:
    mine, theirs = (
        np.quantile(measure(streamlines), _QUANTILES).tolist() if len(streamlines) else []
        for streamlines in (generated, real)
    )
    return mine, theirs
