"""The leading spatial steps of a patch: where its voxels are taken from, in as few passes as possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from voxelocity.data.augment.steps.spatial import Crop, Flip, SpatialStep, Turn, Warp


def gather(source: torch.Tensor, steps: Sequence[SpatialStep], out: torch.Tensor) -> None:
    """Fills `out` (c, x, y, z) with what the steps make of `source` (c, x, y, z), which is not changed."""
    out.copy_(taken(source, steps))


def taken(source: torch.Tensor, steps: Sequence[SpatialStep]) -> torch.Tensor:
    """What the steps make of `source`, one after the other, in plain torch; a view of it where that is enough."""
    for step in steps:
        source = _one(source, step)
    return source


def _one(source: torch.Tensor, step: SpatialStep) -> torch.Tensor:
    if isinstance(step, Flip):
        return source.flip([axis + 1 for axis in range(3) if step.axes[axis]])
    if isinstance(step, Turn):
        return source.rot90(step.quarter_turns, (step.axes[0] + 1, step.axes[1] + 1))
    if isinstance(step, Warp):
        raise NotImplementedError("gather: warps are not made here yet")
    return _crop(source, step)


def _crop(source: torch.Tensor, step: Crop) -> torch.Tensor:
    inside, pads = [], []
    for start, length, side in zip(step.start, step.shape, source.shape[1:], strict=True):
        first, last = min(max(start, 0), side), min(max(start + length, 0), side)
        last = max(first, last)
        inside.append(slice(first, last))
        before = min(max(-start, 0), length)
        pads.append((before, length - before - (last - first)))
    box = source[(slice(None), *inside)]
    if not any(map(any, pads)):
        return box
    return torch.nn.functional.pad(box, [n for pair in reversed(pads) for n in pair], value=step.fill)
