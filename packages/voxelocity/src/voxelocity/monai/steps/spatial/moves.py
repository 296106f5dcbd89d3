"""What gathering works on: tasks, whose steps become as few passes over an array as possible.

A pass is exact moves, at most one resampling, and exact moves again; two resamplings are two passes. Several exact
moves are one: which axis of an array becomes which of the result, and what surrounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.monai.steps.spatial.step import (
    Crop,
    ExactStep,
    Flip,
    Floats,
    Resize,
    SamplingGrid,
    SpatialStep,
    Warp,
)


@dataclass(frozen=True, kw_only=True)
class AxisMap:
    """One axis of a result.

    Attributes:
        axis: the axis of the array that runs along it.
        start: the voxel of the array that comes first.
        sign: 1, or -1 for backward.
        length: how many voxels of the array.
        before: how many voxels of the fill come first.
        after: how many voxels of the fill come last.
    """

    axis: int
    start: int
    sign: int
    length: int
    before: int = 0
    after: int = 0

    @property
    def side(self) -> int:
        """Of the result."""
        return self.before + self.length + self.after

    @property
    def source_slice(self) -> slice:
        """The array's voxels that the result contains, in its order."""
        stop = self.start + self.sign * self.length
        return slice(self.start, stop if stop >= 0 else None, self.sign) if self.length > 0 else slice(0, 0)

    @property
    def result_slice(self) -> slice:
        """Where these voxels are in the result."""
        return slice(self.before, self.before + self.length)

    def flipped(self) -> AxisMap:
        """The same, reversed."""
        start = self.start + self.sign * (self.length - 1)
        return replace(self, start=start, sign=-self.sign, before=self.after, after=self.before)

    def cropped(self, start: int, length: int) -> AxisMap:
        """The window that begins at `start`, which may reach beyond the result."""
        first = min(max(self.before, start), start + length)
        stop = max(first, min(self.before + self.length, start + length))
        moved = self.start + self.sign * (first - self.before)
        return replace(self, start=moved, length=stop - first, before=first - start, after=start + length - stop)


@dataclass(frozen=True)
class Moves:
    """Exact moves of an array: along each axis of the result, and the fill around the array's voxels."""

    along: tuple[AxisMap, AxisMap, AxisMap]
    fill: float = 0.0

    @classmethod
    def none(cls, shape: Index3) -> Moves:
        """The moves that leave an array of `shape` unchanged."""
        x, y, z = (AxisMap(axis=axis, start=0, sign=1, length=side) for axis, side in enumerate(shape))
        return cls((x, y, z))

    @property
    def shape(self) -> Index3:
        """Of the result."""
        x, y, z = (axis_map.side for axis_map in self.along)
        return (x, y, z)

    @property
    def has_fill(self) -> bool:
        """Whether the result contains more than voxels of the array."""
        return any(axis_map.before or axis_map.after for axis_map in self.along)

    def then(self, step: ExactStep) -> Moves | None:
        """These moves and one more; None if the result would contain two different fills."""
        along = list(self.along)
        if isinstance(step, Crop):
            return self._cropped(step)
        if isinstance(step, Flip):
            for axis in range(3):
                if step.axes[axis]:
                    along[axis] = along[axis].flipped()
        else:
            first, second = step.axes
            for _ in range(step.quarter_turns % 4):
                along[first], along[second] = along[second].flipped(), along[first]
        return Moves((along[0], along[1], along[2]), self.fill)

    def _cropped(self, step: Crop) -> Moves | None:
        windows = list(zip(self.along, step.start, step.shape, strict=True))
        x, y, z = (axis_map.cropped(start, length) for axis_map, start, length in windows)
        cropped = Moves((x, y, z), self.fill)
        goes_beyond = any(start < 0 or start + length > axis_map.side for axis_map, start, length in windows)
        if not goes_beyond or step.fill == self.fill:
            return cropped
        return None if self.has_fill else replace(cropped, fill=step.fill)

    def view(self, array: Array) -> Array:
        """(c, *) of an array (c, x, y, z), a view: its voxels in the result, without the fill."""
        turned = array.transpose(0, *(axis_map.axis + 1 for axis_map in self.along))
        taken: Array = turned[(slice(None), *(axis_map.source_slice for axis_map in self.along))]
        return taken

    def copied_part(self, result: Array) -> Array:
        """(c, *) of a result, a view: the part that comes from the array."""
        part: Array = result[(slice(None), *(axis_map.result_slice for axis_map in self.along))]
        return part

    def fill_around(self, result: Array) -> None:
        """Writes the fill around that part."""
        inner = result
        for axis, axis_map in enumerate(self.along, start=1):
            for part in (slice(0, axis_map.before), slice(axis_map.side - axis_map.after, axis_map.side)):
                inner[(slice(None),) * axis + (part,)] = np.asarray(self.fill).astype(result.dtype)
            inner = inner[(slice(None),) * axis + (axis_map.result_slice,)]


def composed(shape: Index3, steps: Sequence[SpatialStep]) -> tuple[Moves, int]:
    """The leading exact steps on an array of `shape` that combine into one, and their number."""
    moves = Moves.none(shape)
    for number, step in enumerate(steps):
        further = None if isinstance(step, Warp | Resize) else moves.then(step)
        if further is None:
            return moves, number
        moves = further
    return moves, len(steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gain:
    """`v * scale + shift`, each (c,) float32, applied to voxels as they are written to the result."""

    scale: Floats
    shift: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class GatherTask:
    """A result and what it is made of.

    Attributes:
        source: (c, x, y, z), only read.
        steps: applied to it in this order.
        gain: applied to each value after them, or None; with a gain `out` is float32.
        out: (c, *shape after the steps), filled; another dtype than the source's converts.
    """

    source: torch.Tensor
    steps: Sequence[SpatialStep]
    gain: Gain | None
    out: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class SpatialPass:
    """Exact moves of an array, at most one resampling of the result, then exact moves again."""

    before: Moves
    resampling: Warp | Resize | None
    after: Moves


def passes(shape: Index3, steps: Sequence[SpatialStep]) -> list[SpatialPass]:
    """The passes over an array of `shape`; at least one."""
    made: list[SpatialPass] = []
    rest = list(steps)
    while rest or not made:
        before, num = composed(shape, rest)
        rest = rest[num:]
        resampling, shape = None, before.shape
        if rest and isinstance(rest[0], Warp | Resize):
            resampling, rest = rest[0], rest[1:]
            shape = resampling.shape_after(shape)
        after, num = composed(shape, rest) if resampling is not None else (Moves.none(shape), 0)
        rest, shape = rest[num:], after.shape
        made.append(SpatialPass(before=before, resampling=resampling, after=after))
    return made


def positions_in_result(positions: SamplingGrid, after: Moves, order: Sequence[int]) -> list[Any]:
    """The positions of a warp along the axes of a result in `order`, of which `after` tells what the warp fills.

    Returns:
        The three lines, theta (3, 4) with their columns, the order of its products (4,), whether they are fused, the
        scale (3,) or (0,) of the type that the positions are computed in, and the shifts (3, *) or (3, 0, 0, 0).
    """
    along = [after.along[axis] for axis in order]
    columns = [axis_map.axis for axis_map in along]
    lines = [np.ascontiguousarray(positions.lines[axis_map.axis][axis_map.source_slice]) for axis_map in along]
    summed = [*(columns.index(axis) for axis in positions.order), 3]
    kind = np.float64 if positions.is_wide else np.float32
    scale = np.zeros(0, kind) if positions.scale is None else positions.scale.astype(kind)
    shifts = np.zeros((3, 0, 0, 0), np.float32)
    if positions.shifts is not None:
        turned = positions.shifts[columns].transpose(0, *(axis + 1 for axis in columns))
        shifts = np.ascontiguousarray(turned[(slice(None), *(axis_map.source_slice for axis_map in along))])
    theta = np.ascontiguousarray(positions.theta[:, [*columns, 3]])
    return [*lines, theta, np.array(summed, np.int64), positions.is_fused, scale, shifts]
