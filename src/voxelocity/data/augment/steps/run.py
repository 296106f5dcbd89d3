"""The steps of one patch, in their order: spatial ones gathered in as few passes as possible, the others in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from voxelocity.core.region import Index3
from voxelocity.data.augment.steps.change import change
from voxelocity.data.augment.steps.gather import gather
from voxelocity.data.augment.steps.intensity import IntensityStep
from voxelocity.data.augment.steps.spatial import SpatialStep

Step = SpatialStep | IntensityStep


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One patch to be made.

    Attributes:
        source: (c, x, y, z), only read.
        steps: what is made of it, in this order.
        out: (c, *shape after the steps), filled; of the source's dtype, or float32 once a step interpolates or changes
            intensities.
    """

    source: torch.Tensor
    steps: Sequence[Step]
    out: torch.Tensor


def run(pieces: Sequence[Piece]) -> None:
    """Makes the patches of one sample: of the same places, where the steps of several begin with the same objects."""
    for piece in pieces:
        _run_one(piece)


def _run_one(piece: Piece) -> None:
    source = piece.source
    groups = [(is_spatial, list(steps)) for is_spatial, steps in itertools.groupby(piece.steps, key=_is_spatial)]
    if not groups or not groups[0][0]:
        groups.insert(0, (True, []))
    num_spatial = sum(is_spatial for is_spatial, _ in groups)
    buffer = piece.out
    for is_spatial, steps in groups:
        if is_spatial:
            num_spatial -= 1
            shape = _shape_after((int(source.shape[1]), int(source.shape[2]), int(source.shape[3])), steps)
            buffer = piece.out if num_spatial == 0 else piece.out.new_empty((source.shape[0], *shape))
            gather(source, cast("list[SpatialStep]", steps), buffer)
        else:
            change(buffer, cast("list[IntensityStep]", steps))
        source = buffer


def _is_spatial(step: Step) -> bool:
    return isinstance(step, SpatialStep)


def _shape_after(shape: Index3, steps: Sequence[Step]) -> Index3:
    for step in steps:
        shape = cast(SpatialStep, step).shape_after(shape)
    return shape
