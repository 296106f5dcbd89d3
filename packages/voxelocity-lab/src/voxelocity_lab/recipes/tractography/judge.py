"""How good generated streamlines are: the space they fill, their shape, and whether they are copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity_lab.recipes.tractography.shapes import (
    Numbers,
    Points,
    as_ragged,
    curvature_per_mm,
    lengths_mm,
    nearest_mm,
    resample,
)

VOXEL_MM = 2.0
_STEP_MM = 0.5
# Half a voxel. Of the real streamlines of HCP1065, 1 % lie as near to one of the other half of their bundle.
COPY_MM = 1.0
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MIDDLE = _QUANTILES.index(0.5)


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
        nearest_mm: median distance to the nearest streamline of the training; NaN if none of these is known.
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
    nearest_mm: float
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


def judge(generated: Points, real: Points, trained: Points, *, is_inside: Numbers | None = None) -> Judgment:
    """Compares streamlines of one bundle.

    Args:
        generated: (n, p, 3), to judge.
        real: (m, p, 3) that the model has not seen.
        trained: (k, p, 3) that it was trained on.
        is_inside: (n, p), whether each point lies inside the mask.
    """
    overlap, overreach, f1 = space_shared(generated, real)
    chosen = np.random.default_rng(0).permutation(len(trained))[: len(generated)]
    ceiling = space_shared(trained[chosen], real)[2] if len(chosen) == len(generated) else float("nan")
    near = nearest_mm(generated, trained)
    near_real = nearest_mm(real, trained)
    return Judgment(
        num_real=len(real),
        num_generated=len(generated),
        overlap=overlap,
        overreach=overreach,
        f1=f1,
        ceiling_f1=ceiling,
        length_mm=_spreads(generated, real, _length),
        curvature_per_mm=_spreads(generated, real, curvature_per_mm),
        nearest_mm=float(np.median(near)) if len(trained) else float("nan"),
        copied=float((near < COPY_MM).mean()) if len(trained) else float("nan"),
        copied_real=float((near_real < COPY_MM).mean()) if len(trained) else float("nan"),
        outside=float("nan") if is_inside is None else float(1.0 - is_inside.mean()),
    )


def mean_of(judgments: Mapping[str, Judgment], *, least_real: int) -> dict[str, float]:
    """The mean figures over bundles with at least `least_real` real streamlines."""
    chosen = [judgment for judgment in judgments.values() if judgment.num_real >= least_real]
    names = ("overlap", "overreach", "f1", "ceiling_f1", "nearest_mm", "copied", "copied_real", "outside")
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


def middle_of(streamlines: Points) -> tuple[float, float]:
    """The median length in mm, and the median of the mean curvature in rad/mm, of at least one streamline."""
    return float(np.median(_length(streamlines))), float(np.median(curvature_per_mm(streamlines)))


def _length(streamlines: Points) -> Numbers:
    return lengths_mm(*as_ragged(streamlines))


def _spreads(generated: Points, real: Points, measure: Any) -> tuple[list[float], list[float]]:
    mine, theirs = (
        np.quantile(measure(streamlines), _QUANTILES).tolist() if len(streamlines) else []
        for streamlines in (generated, real)
    )
    return mine, theirs
