"""The shape of a patch and the strides that suit it, in the proportions of the median case; spacing made coarser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3

Vector = npt.NDArray[np.float64]

_SMALLEST_FEATURE_MAP = 4
# Of a patch or a window: `WindowConfig`.
_LONGEST_VOXEL = 2048


@dataclass(frozen=True, kw_only=True)
class PatchFit:
    """A patch and the strides that suit it. `divisor` is the product of the strides, axis by axis."""

    shape_voxel: Index3
    strides: tuple[Index3, ...]
    divisor: Index3


def fit_patch(
    shape_voxel: Vector, spacing_mm: Vector, *, max_voxels: int, max_levels: int, given: Sequence[Index3] = ()
) -> PatchFit:
    """The largest patch of at most about `max_voxels` that is no longer than the median case and near-cubic in mm.

    As nnU-Net plans it (Isensee et al. 2021): an axis is halved while at least four voxels remain and its spacing is
    not yet twice as coarse as the finest. Axes are rounded to the nearest multiple of the network's divisor: on
    hippocampus, 32 x 48 x 32 learned as much per step as 40 x 56 x 40, which covers the whole median case, in two
    thirds of the time (docs/log). Of strides that are `given`, the patch is a multiple, whatever suits it.
    """
    whole = np.clip(np.ceil(shape_voxel - 0.01), 1.0, _LONGEST_VOXEL)
    ideal = whole if whole.prod() <= max_voxels else _near_cube(whole, spacing_mm, max_voxels)
    strides = tuple(given) or _halvings(ideal, spacing_mm, max_levels, only_even=False)
    divisor = np.prod(np.array(strides, dtype=int).reshape(-1, 3), axis=0)
    multiples = np.maximum(np.round(ideal / divisor), 1.0)
    return PatchFit(shape_voxel=_index3(multiples * divisor), strides=strides, divisor=_index3(divisor))


def strides_for(patch_voxel: Index3, spacing_mm: Vector, *, max_levels: int) -> tuple[Index3, ...]:
    """The strides that suit a given patch: by the same rule, but halving only even numbers."""
    return _halvings(np.array(patch_voxel, dtype=np.float64), spacing_mm, max_levels, only_even=True)


def _near_cube(whole: Vector, spacing_mm: Vector, max_voxels: int) -> Vector:
    low, high = 0.0, float((whole * spacing_mm).max())
    for _ in range(50):
        side_mm = (low + high) / 2
        # A side shorter than a slice is thick still takes one slice.
        voxels = np.clip(side_mm / spacing_mm, 1.0, whole).prod()
        low, high = (side_mm, high) if voxels <= max_voxels else (low, side_mm)
    return np.clip(low / spacing_mm, 1.0, whole)


def _halvings(shape: Vector, spacing_mm: Vector, max_levels: int, *, only_even: bool) -> tuple[Index3, ...]:
    size, spacing = np.ceil(shape), spacing_mm.astype(float).copy()
    strides: list[Index3] = []
    while len(strides) < max_levels - 1:
        large = size / 2 >= _SMALLEST_FEATURE_MAP
        if only_even:
            large &= size % 2 == 0
        fine = spacing < 2.0 * spacing[large].min(initial=np.inf)
        halved = large & fine
        if not halved.any():
            break
        size, spacing = np.where(halved, np.ceil(size / 2), size), np.where(halved, spacing * 2, spacing)
        strides.append(_index3(np.where(halved, 2, 1)))
    # A network needs at least two levels; an axis of one voxel stays unchanged.
    return tuple(strides) or ((1, 1, 1),)


def _index3(values: npt.NDArray[np.float64] | npt.NDArray[np.int_]) -> Index3:
    x, y, z = (int(v) for v in values)
    return (x, y, z)


def coarsen(spacing: Vector, shape: Vector, max_voxels: float) -> Vector:
    """The spacing made coarser, finest axes first, until the volume has `max_voxels`."""
    low, high = float(spacing.min()), float(spacing.max()) * 64
    for _ in range(60):
        floor = (low * high) ** 0.5
        voxels = np.maximum(shape * spacing / np.maximum(spacing, floor), 1.0).prod()
        low, high = (floor, high) if voxels > max_voxels else (low, floor)
    coarser: Vector = np.maximum(spacing, high)
    return coarser
