"""Stages of a MONAI bundle that move voxels, and the records that undo them as MONAI's `Invertd` does.

Scores are interpolated last (`data.prepare.Restoration`), so a crop, turn or padding after a resampling is written into
the trace as one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from voxelocity.core.contracts import StageEffect
from voxelocity.core.region import Index3
from voxelocity.core.volume import Grid, Spacing, Volume, VolumeSpec
from voxelocity.data.prepare import Trace, first_positions
from voxelocity.data.prepare.resample import interpolate
from voxelocity_observe.core.errors import ScanError

_SAME_SPACING_MM = 1e-3
"""MONAI's AFFINE_TOL."""
_MAX_VOXELS = 2**31 - 1

_CROP, _ORIENT, _RESAMPLE = "crop", "orient", "resample"
Back = Literal["scores", "nearest", "linear"]
"""What is brought back to the scan's grid: scores, interpolated; or class numbers, the nearest or interpolated ones."""


@dataclass(frozen=True)
class ResampleAsMonai:
    """Stage: as MONAI's `Spacing`, linear: the first voxel stays in place, and the last samples repeat the border."""

    spacing_mm: Spacing
    back: Back = "scores"

    def describe(self, spec: VolumeSpec) -> StageEffect:
        shape, steps = self._plan(spec.grid, who="the scan")
        new = replace(spec, grid=_stepped(spec.grid, shape, steps), dtype="float32")
        return StageEffect(spec=new, scratch_bytes=2 * max(spec.image_bytes, new.image_bytes))

    def fingerprint(self) -> str:
        return f"Spacing{self.spacing_mm}"

    def __call__(self, volume: Volume) -> Volume:
        shape, steps = self._plan(volume.grid, who=f"case '{volume.case_id}'")
        if steps == (1.0, 1.0, 1.0):
            return volume
        before = volume.grid.shape
        positions = tuple(first_positions(*along_axis) for along_axis in zip(before, shape, steps, strict=True))
        return volume.with_(
            image=interpolate(volume.image, positions),
            grid=_stepped(volume.grid, shape, steps),
            trace=(*volume.trace, _spacing_record(before, shape, steps, self.back)),
        )

    def _plan(self, grid: Grid, *, who: str) -> tuple[Index3, Spacing]:
        steps, shape = [1.0, 1.0, 1.0], list(grid.shape)
        for axis, (old, new) in enumerate(zip(grid.spacing_mm, self.spacing_mm, strict=True)):
            if not (math.isfinite(old) and old > 0.0):
                raise ScanError(f"infer: {who} has the spacing {grid.spacing_mm} mm; fix its header, or leave it out")
            if abs(old - new) > _SAME_SPACING_MM:
                steps[axis] = new / old
                shape[axis] = round((grid.shape[axis] - 1) * old / new + 1)
        if math.prod(shape) > _MAX_VOXELS:
            raise ScanError(
                f"infer: {who} would have {' x '.join(map(str, shape))} voxels at the spacing of the network, "
                f"{self.spacing_mm} mm, more than the supported {_MAX_VOXELS:,}; check the spacing {grid.spacing_mm} "
                "mm in its header, or crop it"
            )
        return (shape[0], shape[1], shape[2]), (steps[0], steps[1], steps[2])


def _stepped(grid: Grid, shape: Index3, steps: Spacing) -> Grid:
    affine = grid.matrix
    affine[:3, :3] *= steps
    return Grid.of(shape, affine)


@dataclass(frozen=True)
class PadToWindow:
    """Stage: as MONAI's sliding window pads an image that is smaller than a window, on both sides.

    Attributes:
        shape: of a window; 0 for the image's own length.
        mode: of `np.pad`.
        value: for the mode "constant".
    """

    shape: Index3
    mode: Literal["constant", "edge", "reflect", "wrap"]
    value: float = 0.0

    def describe(self, spec: VolumeSpec) -> StageEffect:
        x, y, z = (max(n, side) for n, side in zip(spec.grid.shape, self.shape, strict=True))
        new = replace(spec, grid=Grid.of((x, y, z), spec.grid.matrix))
        return StageEffect(spec=new, scratch_bytes=new.image_bytes)

    def fingerprint(self) -> str:
        return f"Pad{self.shape}{self.mode}{self.value}"

    def __call__(self, volume: Volume) -> Volume:
        missing = [max(0, side - n) for n, side in zip(volume.grid.shape, self.shape, strict=True)]
        if not any(missing):
            return volume
        before = [num // 2 for num in missing]
        around = [(0, 0), *((first, num - first) for first, num in zip(before, missing, strict=True))]
        values: dict[str, Any] = {"constant_values": self.value} if self.mode == "constant" else {}
        image = np.pad(volume.image, around, mode=self.mode, **values)
        starts = [-first for first in before]
        affine = volume.grid.matrix
        affine[:, 3] = affine @ [*starts, 1.0]
        return volume.with_(
            image=image,
            grid=Grid.of(image.shape[1:], affine),
            trace=(*volume.trace, {"step": _CROP, "start": starts, "shape": list(volume.grid.shape)}),
        )


@dataclass(frozen=True)
class CheckWhole:
    """Stage: nothing is changed, and a volume that the network cannot take as a whole is refused.

    Attributes:
        why_not: why the network cannot take an image of a shape, in words; "" if it can.
    """

    why_not: Callable[[Index3], str]

    def describe(self, spec: VolumeSpec) -> StageEffect:
        return StageEffect(spec=spec, scratch_bytes=0)

    def fingerprint(self) -> str:
        return "whole"

    def __call__(self, volume: Volume) -> Volume:
        """The volume itself.

        Raises:
            ScanError: the network cannot take it.
        """
        if why := self.why_not(volume.grid.shape):
            raise ScanError(
                f"infer: case '{volume.case_id}' has {' x '.join(map(str, volume.grid.shape))} voxels once it is "
                f"prepared, and the bundle gives them to its network all at once, which cannot take them ({why}); crop "
                "or pad it, in most cases to multiples of 16 or 32"
            )
        return volume


def _spacing_record(shape: Index3, new_shape: Index3, steps: Spacing, back: Back) -> dict[str, Any]:
    """The record of MONAI's `Spacing`, after which the first voxel stays in place.

    Args:
        shape: before.
        new_shape: after.
        steps: of a new voxel, in voxels before.
        back: what is brought back.
    """
    along = list(zip(shape, new_shape, steps, strict=True))
    if back == "nearest":
        positions = [_nearest(num, new, step) for num, new, step in along]
    else:
        positions = [first_positions(new, num, 1.0 / step).tolist() for num, new, step in along]
    record = {"step": _RESAMPLE, "shape": list(shape), "new_shape": list(new_shape), "positions": positions}
    return {**record, "interpolates_labels": True} if back == "linear" else record


def _nearest(num: int, num_new: int, step: float) -> list[float]:
    """The new voxel that MONAI takes for each voxel before, with its rounding where two are equally near."""
    from monai.networks.layers import AffineTransform

    places = torch.arange(num_new, dtype=torch.float64)[None, None, :, None, None]
    theta = torch.diag(torch.tensor([1.0 / step, 1.0, 1.0, 1.0], dtype=torch.float64))
    warp = AffineTransform(mode="nearest", padding_mode="border", align_corners=False)
    found: list[float] = warp(places, theta=theta, spatial_size=(num, 1, 1)).flatten().tolist()
    return found


def resampling_last(trace: Trace, shape: Index3) -> Trace:
    """The trace with its last record, of a crop or turn, exchanged with the resampling before it, if that is one.

    Args:
        trace: of a volume.
        shape: of the volume.
    """
    if len(trace) < 2 or trace[-2]["step"] != _RESAMPLE or trace[-1]["step"] not in (_CROP, _ORIENT):
        return trace
    *before, resampling, last = trace
    exchange = _turned if last["step"] == _ORIENT else _cropped
    return (*before, *exchange(resampling, last, shape))


def _turned(resampling: Mapping[str, Any], turn: Mapping[str, Any], shape: Index3) -> tuple[Mapping[str, Any], ...]:
    axes = turn["axes"]
    along = [np.array(resampling["positions"][axis]) for axis in axes]
    positions = [
        (num - 1 - at)[::-1] if is_flipped else at
        for at, num, is_flipped in zip(along, shape, turn["flips"], strict=True)
    ]
    return turn, {
        **resampling,
        "shape": [resampling["shape"][axis] for axis in axes],
        "new_shape": list(shape),
        "positions": [at.tolist() for at in positions],
    }


def _cropped(resampling: Mapping[str, Any], crop: Mapping[str, Any], shape: Index3) -> tuple[Mapping[str, Any], ...]:
    """MONAI pads with zeros and interpolates: the class of the border reaches less than a voxel beyond it."""
    starts, positions = [], []
    for at, first, num in zip(resampling["positions"], crop["start"], shape, strict=True):
        moved = np.array(at) - first
        reached = np.flatnonzero((moved > -1.0) & (moved < num))
        start, stop = (int(reached[0]), int(reached[-1]) + 1) if len(reached) else (0, 1)
        starts.append(start)
        positions.append(np.clip(moved[start:stop], 0.0, num - 1.0).tolist())
    lengths = [len(at) for at in positions]
    found = {**resampling, "shape": lengths, "new_shape": list(shape), "positions": positions}
    whole = resampling["shape"]
    if lengths == list(whole):
        return (found,)
    return {"step": _CROP, "start": starts, "shape": list(whole)}, found
