"""Spatial steps in plain torch, on any device, one after the other: easy to read, and the reference for the compiled
passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from voxelocity.data.augment.steps.spatial.resize import Resize
from voxelocity.data.augment.steps.spatial.step import Crop, Flip, SpatialStep, Turn, Warp


def taken(source: torch.Tensor, steps: Sequence[SpatialStep]) -> torch.Tensor:
    """The result of the steps on `source` (c, x, y, z); a view of it if possible."""
    for step in steps:
        source = _one(source, step)
    return source


def _one(source: torch.Tensor, step: SpatialStep) -> torch.Tensor:
    if isinstance(step, Flip):
        return source.flip([axis + 1 for axis in range(3) if step.axes[axis]])
    if isinstance(step, Turn):
        return source.rot90(step.quarter_turns, (step.axes[0] + 1, step.axes[1] + 1))
    if isinstance(step, Warp):
        return _warped(source, step)
    if isinstance(step, Resize):
        return _resized(source, step)
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
    return functional.pad(box, [n for pair in reversed(pads) for n in pair], value=step.fill)


def _warped(source: torch.Tensor, step: Warp) -> torch.Tensor:
    grid = step.places.normalized(source.device)
    source = source.to(grid.dtype)
    is_plane = step.places.num_spatial == 2
    if is_plane:
        grid, source = grid[:, :, 0, 1:], source[..., 0]
    sampled = functional.grid_sample(
        source[None],
        grid[None],
        mode="bilinear" if step.interpolation == "linear" else "nearest",
        padding_mode=step.beyond,
        align_corners=step.places.align_corners,
    )[0].float()
    return sampled[..., None] if is_plane else sampled


def _resized(source: torch.Tensor, step: Resize) -> torch.Tensor:
    values = source.float()
    for axis, table in enumerate(step.tables, start=1):
        along = [1, 1, 1, 1]
        along[axis] = -1
        total = None
        for tap in range(table.index.shape[1]):
            index = torch.from_numpy(table.index[:, tap].astype("int64")).to(values.device)
            weight = torch.from_numpy(table.weight[:, tap].copy()).to(values.device).view(along)
            term = values.index_select(axis, index) * weight
            total = term if total is None else total + term
        assert total is not None, "a table has at least one tap"
        values = total
    return values
