"""Runs the steps of one patch in order: spatial ones gathered in as few passes as possible, the others in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from voxelocity.monai.steps.engine import StepEngine
from voxelocity.monai.steps.intensity.change import change
from voxelocity.monai.steps.intensity.pointwise import Linear
from voxelocity.monai.steps.intensity.statistic import IntensityStep
from voxelocity.monai.steps.spatial.gather import gather
from voxelocity.monai.steps.spatial.moves import Gain, GatherTask
from voxelocity.monai.steps.spatial.step import SpatialStep

Step = SpatialStep | IntensityStep


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchTask:
    """One patch to be made.

    Attributes:
        source: (c, x, y, z), only read.
        steps: applied to it in this order.
        out: (c, *shape after the steps), filled; of the source's dtype, or float32 once a step interpolates or changes
            intensities.
    """

    source: torch.Tensor
    steps: Sequence[Step]
    out: torch.Tensor


def run(pieces: Sequence[PatchTask], *, engine: StepEngine = "auto") -> None:
    """Makes the patches of one sample, or of a whole batch on a device, where nothing waits for it.

    Consecutive spatial steps are gathered in one pass if at most one of them resamples; a linear change of all voxels
    right after them, without a center, is part of it. Pieces whose warps have the same `SamplingGrid` object share the
    work of finding the voxels.

    Args:
        pieces: of one sample.
        engine: "auto" is compiled loops for CPU tensors, Triton's kernels for those on a CUDA device, and plain torch
            for others and if loops or Triton are missing; "torch" is plain torch for all.
    """
    stages = [_stages(piece) for piece in pieces]
    sources = [piece.source for piece in pieces]
    for number in range(max(map(len, stages), default=0)):
        tasks, rest = [], []
        for index, (piece, own) in enumerate(zip(pieces, stages, strict=True)):
            if number < len(own):
                stage = own[number]
                out = piece.out if number == len(own) - 1 else _between(piece, sources[index], stage.spatial)
                tasks.append(GatherTask(source=sources[index], steps=stage.spatial, gain=stage.gain, out=out))
                rest.append((out, stage.intensity))
                sources[index] = out
        gather(tasks, engine)
        for out, intensity in rest:
            change(out, intensity, engine=engine)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stage:
    """Spatial steps, a linear change that is made with them, and the intensity steps that follow."""

    spatial: list[SpatialStep]
    gain: Gain | None
    intensity: list[IntensityStep]


def _stages(piece: PatchTask) -> list[_Stage]:
    kinds = itertools.groupby(piece.steps, key=lambda step: isinstance(step, SpatialStep))
    groups = [(is_spatial, list(steps)) for is_spatial, steps in kinds]
    if not groups or not groups[0][0]:
        groups.insert(0, (True, []))
    stages = []
    for number in range(0, len(groups), 2):
        spatial = cast("list[SpatialStep]", groups[number][1])
        intensity = cast("list[IntensityStep]", groups[number + 1][1] if number + 1 < len(groups) else [])
        gain = _gain(intensity[0]) if intensity and piece.out.dtype == torch.float32 else None
        stages.append(_Stage(spatial=spatial, gain=gain, intensity=intensity if gain is None else intensity[1:]))
    return stages


def _gain(step: IntensityStep) -> Gain | None:
    """The step if it can be made with the spatial steps before it: a linear change of every voxel, without a center."""
    if isinstance(step, Linear) and step.center is None and not step.keeps_zero:
        return Gain(scale=step.scale, shift=step.shift)
    return None


def _between(piece: PatchTask, source: torch.Tensor, steps: Sequence[SpatialStep]) -> torch.Tensor:
    shape = (int(source.shape[1]), int(source.shape[2]), int(source.shape[3]))
    for step in steps:
        shape = step.shape_after(shape)
    return piece.out.new_empty((source.shape[0], *shape))
