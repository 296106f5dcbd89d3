"""How the sum of a large volume is cut into tiles, so that only those are held which windows still change.

Windows come ordered along one axis, and for equal places along a second. The volume is cut across these axes; a tile is
made when the first window reaches it, and complete after the last. Knows no tensors.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from voxelocity.core.region import Index3, Region
from voxelocity.data.patch import Spread, axis_starts

# A smaller volume is one tile: its sum takes 2 MiB a class, and tiles take a little time each.
_SMALL_VOXELS = 1 << 19
# A second axis is cut if the sum is larger than this otherwise, and a tenth of it can be saved: adding windows to the
# smaller tiles takes a tenth longer (docs/log).
_LARGE_BYTES = 1 << 30
_WORTH_CUTTING = 0.1
# Cuts are at least this share of a window apart; each tile holds one plane of the tile before on each cut axis.
_LEAST_THICKNESS = 0.125

_Positions = list[list[int]]
"""Along an axis, the starts of the windows that move on together."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a volume.

    Attributes:
        box: its voxels. Tiles cover a volume without overlapping.
        held: these and, on each cut axis where there is a tile before, the last plane of that.
        complete_after: how many windows must have been added.
    """

    box: Region
    held: Region
    complete_after: int

    def part_of(self, window: Region) -> Region | None:
        """The voxels of the tile that a window covers; None if it covers none."""
        return shared_voxels(self.box, window)


def shared_voxels(first: Region, second: Region) -> Region | None:
    """The voxels that are in both; None if there are none."""
    x, y, z = (max(a, b) for a, b in zip(first.start, second.start, strict=True))
    end_x, end_y, end_z = (min(a, b) for a, b in zip(first.stop, second.stop, strict=True))
    return Region((x, y, z), (end_x, end_y, end_z)) if x < end_x and y < end_y and z < end_z else None


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The windows of a volume and its tiles.

    Attributes:
        shape: of the volume.
        window: its shape.
        starts: the first voxels of the windows along each axis.
        tiles: in the order in which they become complete. The tiles before a tile along the cut axes come before it.
        axes: that are cut, the one along which windows move last first.
        positions: along each of these axes.
        peak_voxels: the most that are held at once.
        steps: windows move on from place to place; how many have been added at the end of each step.
        reached: the tiles that the windows of each step reach.
    """

    shape: Index3
    window: Index3
    starts: Sequence[Sequence[int]]
    tiles: tuple[Tile, ...]
    axes: tuple[int, ...]
    positions: Sequence[_Positions]
    peak_voxels: int
    steps: tuple[int, ...]
    reached: tuple[tuple[Tile, ...], ...]

    @functools.cached_property
    def windows(self) -> tuple[Region, ...]:
        """In the order in which their outputs must be added."""
        dx, dy, dz = self.window
        return tuple(
            Region((x, y, z), (x + dx, y + dy, z + dz))
            for chosen in itertools.product(*self.positions)
            for x, y, z in itertools.product(*self._starts_at(chosen))
        )

    def _starts_at(self, chosen: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        along = list(self.starts)
        for axis, starts in zip(self.axes, chosen, strict=True):
            along[axis] = starts
        return along

    def reached_by(self, number: int) -> tuple[Tile, ...]:
        """The tiles that a window reaches, and maybe some more, by its place in `windows`."""
        return self.reached[bisect.bisect_right(self.steps, number)]


def tiling_of(
    shape: Index3,
    window: Index3,
    overlap: float,
    *,
    num_outputs: int = 1,
    spread: Spread = "monai",
    in_order: bool = False,
) -> Tiling:
    """The tiling that holds the fewest voxels, across one axis, or across two where the sum is large.

    Args:
        shape: of the volume, at least a window along each axis.
        window: its shape.
        overlap: as in `grid_regions`, whose regions the windows are.
        num_outputs: of the network, float32 each.
        spread: likewise.
        in_order: whether windows must come in the order of x, then y, then z.
    """
    starts = [axis_starts(n, side, overlap, spread=spread) for n, side in zip(shape, window, strict=True)]
    if math.prod(shape) <= _SMALL_VOXELS:
        return _cut(shape, window, starts, (), [])
    single = min(
        (_cut(shape, window, starts, (axis,), [_each(starts[axis])]) for axis in range(1 if in_order else 3)),
        key=lambda cut: cut.peak_voxels,
    )
    if in_order or 4 * num_outputs * single.peak_voxels <= _LARGE_BYTES:
        return single
    double = [
        _cut(shape, window, starts, (first, second), [positions, _each(starts[second])])
        for first, second in itertools.permutations(range(3), 2)
        for positions in (_each(starts[first]), _last_two_as_one(starts[first]))
    ]
    best = min(double, key=lambda cut: cut.peak_voxels)
    return best if best.peak_voxels < (1.0 - _WORTH_CUTTING) * single.peak_voxels else single


def _each(starts: Sequence[int]) -> _Positions:
    return [[start] for start in starts]


def _last_two_as_one(starts: Sequence[int]) -> _Positions:
    """The last windows begin soon after those before them, so both leave tiles complete together."""
    return [*_each(starts[:-2]), list(starts[-2:])]


def _cut(
    shape: Index3,
    window: Index3,
    starts: Sequence[Sequence[int]],
    axes: tuple[int, ...],
    positions: Sequence[_Positions],
) -> Tiling:
    """The tiling across these axes, along which windows move from one place to the next."""
    cuts = [_cuts(shape[axis], window[axis], starts[axis]) if axis in axes else (0, shape[axis]) for axis in range(3)]
    num_beside = math.prod(len(along) for axis, along in enumerate(starts) if axis not in axes)
    steps = list(itertools.accumulate(num_beside * math.prod(map(len, at)) for at in itertools.product(*positions)))
    tiles: list[Tile] = []
    reached: list[list[Tile]] = [[] for _ in steps]
    changes = [0] * (len(steps) + 1)
    for box in _boxes(cuts):
        numbers = [0]
        for axis, along_axis in zip(axes, positions, strict=True):
            near = [n for n, at in enumerate(along_axis) if _is_reached(box, axis, window[axis], at)]
            numbers = [number * len(along_axis) + n for number in numbers for n in near]
        before = [1 if axis in axes and box.start[axis] > 0 else 0 for axis in range(3)]
        held = Region((box.start[0] - before[0], box.start[1] - before[1], box.start[2] - before[2]), box.stop)
        tile = Tile(box, held, steps[numbers[-1]])
        tiles.append(tile)
        for number in numbers:
            reached[number].append(tile)
        changes[numbers[0]] += held.num_voxels
        changes[numbers[-1] + 1] -= held.num_voxels
    tiles.sort(key=lambda tile: (tile.complete_after, *(tile.box.start[axis] for axis in axes)))
    return Tiling(
        shape=shape,
        starts=starts,
        window=window,
        tiles=tuple(tiles),
        axes=axes,
        positions=positions,
        peak_voxels=max(itertools.accumulate(changes)),
        steps=tuple(steps),
        reached=tuple(map(tuple, reached)),
    )


def _cuts(num: int, side: int, starts: Sequence[int]) -> tuple[int, ...]:
    """Where an axis is cut: both ends, and where windows begin or end, not too close to each other."""
    least = max(1, int(_LEAST_THICKNESS * side))
    found = [0]
    for position in sorted({*starts, *(start + side for start in starts)}):
        if position - found[-1] >= least and num - position >= least:
            found.append(position)
    return (*found, num)


def _boxes(cuts: Sequence[Sequence[int]]) -> Iterator[Region]:
    for (x0, x1), (y0, y1), (z0, z1) in itertools.product(*(itertools.pairwise(cut) for cut in cuts)):
        yield Region((x0, y0, z0), (x1, y1, z1))


def _is_reached(box: Region, axis: int, side: int, starts: Sequence[int]) -> bool:
    """Whether windows that begin at one of these places along an axis reach a box."""
    return any(start < box.stop[axis] and start + side > box.start[axis] for start in starts)
