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
import numpy.typing as npt
import torch

from voxelocity.core.contracts import StageEffect
from voxelocity.core.region import Index3
from voxelocity.core.volume import Grid, Spacing, Volume, VolumeSpec
from voxelocity.data.prepare import Trace, first_positions
from voxelocity.data.prepare.resample import interpolate
from voxelocity_observe.core.errors import ScanError

_SAME_SPACING_MM = 1e-3
"""MONAI's AFFINE_TOL."""
_SAME_STEP = 1e-3
"""So near to each other, MONAI leaves grids of equal shape alone."""
_MAX_VOXELS = 2**31 - 1
_PIECE_VOXELS = 1 << 20

_CROP, _ORIENT, _RESAMPLE = "crop", "orient", "resample"
Back = Literal["scores", "nearest", "linear"]
"""What is brought back to the scan's grid: scores, interpolated; or class numbers, the nearest or interpolated ones."""


@dataclass(frozen=True)
class ResampleAsMonai:
    """Stage: as MONAI's `Spacing`, linear: the first voxel stays in place, and the last samples repeat the border.

    Attributes:
        spacing_mm: of the new grid.
        back: what is brought back.
        is_exact: whether values are MONAI's to the last bit, which takes longer. Its places of samples are off by up to
            1e-14, so a sample on a voxel of value 0 may become 1e-13, and one between -1 and 1 may be 0 or not.
    """

    spacing_mm: Spacing
    back: Back = "scores"
    is_exact: bool = False

    def describe(self, spec: VolumeSpec) -> StageEffect:
        shape, steps = self._plan(spec.grid, who="the scan")
        new = replace(spec, grid=_stepped(spec.grid, shape, steps), dtype="float32")
        # The exact one takes the image in float64.
        num_arrays = 3 if self.is_exact else 2
        return StageEffect(spec=new, scratch_bytes=num_arrays * max(spec.image_bytes, new.image_bytes))

    def fingerprint(self) -> str:
        return f"Spacing{self.spacing_mm}{self.is_exact}"

    def __call__(self, volume: Volume) -> Volume:
        shape, steps = self._plan(volume.grid, who=f"case '{volume.case_id}'")
        if steps == (1.0, 1.0, 1.0):
            return volume
        before = volume.grid.shape
        if self.is_exact:
            kept = tuple(step == 1.0 for step in steps)
            image = _interpolate_as_monai(volume, shape, self.spacing_mm, kept)
        else:
            image = interpolate(volume.image, tuple(map(first_positions, before, shape, steps)))
        return volume.with_(
            image=image,
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
        if tuple(shape) == grid.shape and all(abs(step - 1.0) <= _SAME_STEP for step in steps):
            steps = [1.0, 1.0, 1.0]
        if math.prod(shape) > _MAX_VOXELS:
            raise ScanError(
                f"infer: {who} would have {' x '.join(map(str, shape))} voxels at the spacing of the network, "
                f"{self.spacing_mm} mm, more than the supported {_MAX_VOXELS:,}; check the spacing {grid.spacing_mm} "
                "mm in its header, or crop it"
            )
        return (shape[0], shape[1], shape[2]), (steps[0], steps[1], steps[2])


def _interpolate_as_monai(
    volume: Volume, shape: Index3, spacing_mm: Spacing, kept: tuple[bool, ...]
) -> npt.NDArray[np.float32]:
    """The image (c, x, y, z) at the samples of MONAI's `Spacing`, in its arithmetic, some planes at a time.

    Args:
        volume: before.
        shape: after.
        spacing_mm: after.
        kept: the axes that keep their spacing.
    """
    theta = _theta(volume.grid, shape, spacing_mm, kept)
    image = torch.from_numpy(np.ascontiguousarray(volume.image, dtype=np.float64))
    # As torch's `affine_grid` spreads them.
    x, *others = (torch.linspace(-1.0, 1.0, num, dtype=torch.float64) * (num - 1) / num for num in shape)
    found = torch.empty((len(image), *shape))
    thickness = max(1, _PIECE_VOXELS // math.prod(shape[1:]))
    for start in range(0, shape[0], thickness):
        planes = x[start : start + thickness]
        along = torch.meshgrid(planes, *others, indexing="ij")
        places = torch.stack([*reversed(along), torch.ones_like(along[0])], dim=-1)
        samples = places.flatten(0, 2)[None].bmm(theta.mT).view(len(planes), 1, *shape[1:], 3)
        # Each plane as a volume of its own, because these are what torch gives to its threads.
        same = image.expand(len(planes), -1, -1, -1, -1)
        values = torch.nn.functional.grid_sample(same, samples, padding_mode="border", align_corners=False)
        found[:, start : start + len(planes)] = values[:, :, 0].transpose(0, 1)
    return found.numpy()


def _theta(grid: Grid, shape: Index3, spacing_mm: Spacing, kept: tuple[bool, ...]) -> torch.Tensor:
    """What MONAI's `Spacing` gives to `affine_grid`, (1, 3, 4) float64. Arguments as `_interpolate_as_monai`."""
    from monai.data.utils import affine_to_spacing, zoom_affine
    from monai.networks.utils import to_norm_affine

    before = grid.matrix
    wanted = np.where(kept, affine_to_spacing(before), spacing_mm)
    try:
        after = zoom_affine(before, wanted, diagonal=False)
        after[:3, 3] = before[:3, 3]
        step = torch.from_numpy(np.linalg.solve(before, after))[None]
    except np.linalg.LinAlgError:
        raise ScanError(
            f"infer: a scan has the affine {before[:3].tolist()}, whose axes lie in one plane; fix its header, or "
            "leave it out"
        ) from None
    theta: torch.Tensor = to_norm_affine(step, grid.shape, shape)
    # The last axis comes first there.
    order = [2, 1, 0, 3]
    return theta[:, order[:3]][:, :, order]


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
