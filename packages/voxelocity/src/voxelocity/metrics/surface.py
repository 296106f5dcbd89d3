"""Distances between the surfaces of two segmentations, in millimeters.

A surface is the voxels of a class with a neighbor (of six) outside it; beyond the volume counts as outside. This is
MONAI's definition, and tests compare the results with MONAI's. SciPy is imported only to measure: that takes 0.4 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Spacing
from voxelocity.metrics.dice import IntArray
from voxelocity_observe.core.errors import ScanError

NSD_TOLERANCE_MM = 3.0
"""How far two surfaces may be apart to count as equal, as in TotalSegmentator (Wasserthal et al. 2023,
10.1148/ryai.230024). For a small structure, such as a hippocampus, it is too generous."""
# Where distances are multiples of the spacing, rounding must not decide.
_ROUNDING_MM = 1e-6
# 256^3 voxels of smooth noise in 14 classes: 141 s with all points, on two busy cores.
_MANY_POINTS = 20_000
_LARGER = 4

Points = npt.NDArray[np.float64]
Box = tuple[slice, ...]
Steps = Spacing | npt.NDArray[np.float64]
"""One voxel step along (x, y, z): lengths, where axes are at right angles, or the columns of (3, 3)."""


@dataclass(frozen=True)
class SurfaceDistance:
    """How far two surfaces are apart.

    Attributes:
        hd95_mm: the 95th percentile Hausdorff distance.
        nsd: the normalized surface distance, 0 to 1: the share of the voxels of both surfaces that lie within the
            tolerance of the other surface.
        is_estimated: one surface is far larger than the other, and only part of its voxels was measured.
    """

    hd95_mm: float
    nsd: float
    is_estimated: bool = False


def surface_distances(
    prediction_xyz: IntArray,
    truth_xyz: IntArray,
    *,
    num_classes: int,
    steps_mm: Steps,
    tolerance_mm: float = NSD_TOLERANCE_MM,
) -> tuple[SurfaceDistance | None, ...]:
    """How far the surfaces of each foreground class are apart; None if it is empty in truth or prediction.

    HD95 is the larger of the 95th percentiles of the two directed distances, from each surface to the other. NSD counts
    the voxels of both surfaces, as MONAI does, not their areas (Nikolov et al. 2021, 10.2196/26151). Takes about
    2 ms for a hippocampus, 0.1 s for a spleen and 0.7 s for a liver at 1 mm. To bound the cost, only every n-th voxel
    is measured of a surface with more than 20,000 voxels and four times as many as the other, such as the noise of an
    untrained network.

    Args:
        prediction_xyz: (x, y, z) class indices.
        truth_xyz: (x, y, z) class indices.
        num_classes: including the background; the result has one entry less.
        steps_mm: of the grid of both.
        tolerance_mm: of NSD.

    Raises:
        ScanError: the shapes differ, or a spacing is not positive.
    """
    columns_mm = as_columns(steps_mm)
    spacing_mm = tuple(np.linalg.norm(columns_mm, axis=0).tolist())
    if prediction_xyz.shape != truth_xyz.shape or not all(0.0 < s < np.inf for s in spacing_mm):
        raise ScanError(
            f"metrics.surface: prediction {prediction_xyz.shape}, truth {truth_xyz.shape}, spacing {spacing_mm} mm; "
            "shapes must be equal and spacings positive, so bring both onto one grid and fix its header"
        )
    if num_classes < 2:
        return ()
    from scipy.ndimage import find_objects

    # The smallest box around each foreground class; None if it has no voxel.
    boxes = [find_objects(indices, max_label=num_classes - 1) for indices in (truth_xyz, prediction_xyz)]
    distances: list[SurfaceDistance | None] = []
    for index, (box_truth, box_prediction) in enumerate(zip(*boxes, strict=True), start=1):
        if box_truth is None or box_prediction is None:
            distances.append(None)
            continue
        surface_truth = _surface_mm(truth_xyz, index, box_truth, columns_mm)
        surface_prediction = _surface_mm(prediction_xyz, index, box_prediction, columns_mm)
        distances.append(_distance(surface_truth, surface_prediction, tolerance_mm))
    return tuple(distances)


def as_columns(steps_mm: Steps) -> npt.NDArray[np.float64]:
    """The steps as the columns of (3, 3), turned so that those at right angles lie along the axes."""
    given = np.asarray(steps_mm, dtype=np.float64)
    return np.diag(given) if given.ndim == 1 else np.linalg.qr(given)[1]


def _surface_mm(indices: IntArray, index: int, box: Box, columns_mm: npt.NDArray[np.float64]) -> Points:
    """Positions of the surface voxels, (n, 3). Looks only inside the box, because the class has no voxel beyond it."""
    inside = indices[box] == index
    surface = np.argwhere(inside & ~_eroded(inside))
    start = np.array([axis.start for axis in box])
    positions_mm: Points = (surface + start) @ columns_mm.T
    return positions_mm


def _eroded(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Voxels whose six neighbors are inside too: `scipy.ndimage.binary_erosion` in a fifth of its time."""
    eroded = inside.copy()
    for axis in range(inside.ndim):
        before, after = np.moveaxis(eroded, axis, 0), np.moveaxis(inside, axis, 0)
        before[1:] &= after[:-1]
        before[:-1] &= after[1:]
        before[0] = before[-1] = False
    return eroded


def _distance(first: Points, second: Points, tolerance_mm: float) -> SurfaceDistance:
    from scipy.spatial import KDTree

    # A tree over only the surface; distance transforms of the box took 4 to 20 times as long (spleen, distant tumors).
    # Points of a grid are spread evenly, so the plain tree is as fast to query as the balanced one and faster to build.
    trees: list[Any] = [KDTree(points, balanced_tree=False, compact_nodes=False) for points in (first, second)]
    some_first, some_second = _thinned(first, len(second)), _thinned(second, len(first))
    there, _ = trees[1].query(some_first)
    back, _ = trees[0].query(some_second)
    near_there, near_back = (float(np.mean(mm <= tolerance_mm + _ROUNDING_MM)) for mm in (there, back))
    return SurfaceDistance(
        hd95_mm=float(max(np.percentile(there, 95), np.percentile(back, 95))),
        nsd=(near_there * len(first) + near_back * len(second)) / (len(first) + len(second)),
        is_estimated=len(some_first) < len(first) or len(some_second) < len(second),
    )


def _thinned(points: Points, num_others: int) -> Points:
    """Every n-th point if there are far too many, evenly over the volume."""
    most = max(_MANY_POINTS, _LARGER * num_others)
    return points[:: -(-len(points) // most)]
