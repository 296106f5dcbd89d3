"""Resamples to a common spacing: linear, axis by axis, about the center of the field of view."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from voxelocity.core.contracts import StageEffect
from voxelocity.core.native import has_loops
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Grid, Spacing, Volume, VolumeSpec
from voxelocity.data.prepare.interpolate import (
    Positions,
    nearest_positions,
    resample_label,
    sample_along,
    sample_positions,
)
from voxelocity_observe.core.errors import ScanError

ResampleEngine = Literal["auto", "numpy"]

STEP = "resample"
_SAME_SPACING_RELATIVE = 1e-3
# Foreground voxels are stored as int32 indices.
_MAX_VOXELS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Resample:
    """Stage: voxels at the given spacing, by linear interpolation; the center of the scan stays in place.

    An axis whose spacing matches to one part in a thousand is left alone. New samples outside the scan's outermost
    voxel centers take the value of the border. Labels take the class with the largest interpolated share.

    Attributes:
        spacing_mm: of the new grid, along (x, y, z).
        engine: as in `PrepareConfig`.
    """

    spacing_mm: Spacing
    engine: ResampleEngine = "auto"

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a scan of this spec.

        Raises:
            ScanError: the spacing is not a positive number, or the result would have too many voxels.
        """
        plan = _plan(spec.grid, self.spacing_mm, who="the scan")
        if plan.is_identity:
            return StageEffect(spec=spec, scratch_bytes=0)
        new = VolumeSpec(num_channels=spec.num_channels, grid=plan.grid, dtype="float32")
        # The result of one axis is held while the next is made; the label needs two shares and its result.
        scratch = 2 * 4 * spec.num_channels * max(spec.grid.num_voxels, plan.grid.num_voxels)
        return StageEffect(spec=new, scratch_bytes=scratch + 9 * plan.grid.num_voxels)

    def __call__(self, volume: Volume) -> Volume:
        """The volume on the new grid, image float32; the volume itself if no axis changes.

        Raises:
            ScanError: as `describe`.
        """
        plan = _plan(volume.grid, self.spacing_mm, who=f"case '{volume.case_id}'")
        if plan.is_identity:
            return volume
        positions = plan.positions(volume.grid.shape)
        record = {
            "step": STEP,
            "shape": list(volume.grid.shape),
            "new_shape": list(plan.grid.shape),
            "step_voxel": list(plan.step_voxel),
        }
        return volume.with_(
            image=interpolate(volume.image, positions, engine=self.engine),
            label=None if volume.label is None else _resample_label(volume.label, positions, self.engine),
            grid=plan.grid,
            trace=(*volume.trace, record),
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    grid: Grid
    # New voxel steps in old ones; exactly 1 for an axis left alone.
    step_voxel: Spacing

    @property
    def is_identity(self) -> bool:
        return self.step_voxel == (1.0, 1.0, 1.0)

    def positions(self, shape: Index3) -> tuple[Positions, ...]:
        steps = zip(shape, self.grid.shape, self.step_voxel, strict=True)
        return tuple(sample_positions(before, after, step) for before, after, step in steps)


def interpolate(array: Array, positions: tuple[Positions, ...], *, engine: ResampleEngine = "auto") -> Array:
    """The array (..., x, y, z) as float32 at the given positions of its last three axes, order in memory kept."""
    if engine == "auto" and has_loops():
        from voxelocity.data.prepare.native_resample import interpolate_compiled

        return interpolate_compiled(array, positions)
    leading = array.ndim - 3
    # The axis that shrinks most comes first, so that the others have less to do.
    for axis in sorted(range(3), key=lambda i: len(positions[i]) / array.shape[leading + i]):
        if not _is_identity(positions[axis], array.shape[leading + axis]):
            array = sample_along(array, positions[axis], leading + axis)
    return array.astype(np.float32, copy=False)


def _resample_label(label_xyz: Array, positions: tuple[Positions, ...], engine: ResampleEngine) -> Array:
    if engine == "auto" and label_xyz.dtype in (np.uint8, np.uint16) and has_loops():
        from voxelocity.data.prepare.native_resample import resample_label_compiled

        return resample_label_compiled(label_xyz, positions)
    return resample_label(label_xyz, positions)


def positions_back(record: Mapping[str, Any]) -> tuple[Positions, ...]:
    """For each axis, where the voxels before this step lie on the axis after it; whole on its `nearest_axes`.

    Both axes share their center, unless the record has the `positions`.
    """
    if "positions" in record:
        x, y, z = (np.array(axis, dtype=np.float64) for axis in record["positions"])
        return x, y, z
    steps = zip(record["shape"], record["new_shape"], record["step_voxel"], strict=True)
    nearest = record.get("nearest_axes", ())
    return tuple(
        nearest_positions(int(after), int(before))
        if axis in nearest
        else sample_positions(int(after), int(before), 1.0 / float(step))
        for axis, (before, after, step) in enumerate(steps)
    )


def resize_record(shape: Index3, new_shape: Index3, *, nearest_axes: Sequence[int] = ()) -> dict[str, Any]:
    """The record in a volume's trace of the same field of view with another number of voxels.

    Args:
        shape: before.
        new_shape: after.
        nearest_axes: along which scores are not interpolated on the way back.
    """
    steps = [before / after for before, after in zip(shape, new_shape, strict=True)]
    record = {"step": STEP, "shape": list(shape), "new_shape": list(new_shape), "step_voxel": steps}
    return {**record, "nearest_axes": list(nearest_axes)} if nearest_axes else record


def _is_identity(positions: Positions, num: int) -> bool:
    return len(positions) == num and bool(np.array_equal(positions, np.arange(num)))


def _plan(grid: Grid, spacing_mm: Spacing, *, who: str) -> _Plan:
    steps, shape = [1.0, 1.0, 1.0], list(grid.shape)
    for axis, (old_mm, new_mm) in enumerate(zip(grid.spacing_mm, spacing_mm, strict=True)):
        if not (math.isfinite(old_mm) and old_mm > 0.0):
            raise ScanError(
                f"prepare.resample: {who} has spacing {old_mm} mm on {'xyz'[axis]}; fix the header or leave the scan "
                'out, or keep all spacings with spacing_mm: "keep"'
            )
        if abs(old_mm - new_mm) > _SAME_SPACING_RELATIVE * new_mm:
            steps[axis] = new_mm / old_mm
            shape[axis] = max(1, round(grid.shape[axis] * old_mm / new_mm))
    if math.prod(shape) > _MAX_VOXELS:
        raise ScanError(
            f"prepare.resample: {who} would have {' x '.join(map(str, shape))} = {math.prod(shape):,} voxels at "
            f"{spacing_mm} mm, more than the supported {_MAX_VOXELS:,}; choose a coarser spacing_mm, "
            f"or check the spacing {grid.spacing_mm} mm in the header"
        )
    return _Plan(grid=_new_grid(grid, shape, steps, spacing_mm), step_voxel=(steps[0], steps[1], steps[2]))


def _new_grid(grid: Grid, shape: list[int], steps: list[float], spacing_mm: Spacing) -> Grid:
    affine = grid.matrix
    center_mm = affine @ [*((n - 1) / 2 for n in grid.shape), 1.0]
    for axis, step in enumerate(steps):
        if step != 1.0:
            affine[:3, axis] *= spacing_mm[axis] / np.linalg.norm(affine[:3, axis])
    affine[:3, 3] = center_mm[:3] - affine[:3, :3] @ [(n - 1) / 2 for n in shape]
    return Grid.of(tuple(shape), affine)
