"""The same voxels with their axes exchanged and reversed: how arrays and grids are turned, and which turn joins two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Grid

_DIRECTIONS = ("LR", "PA", "IS")


@dataclass(frozen=True, kw_only=True)
class AxisOrder:
    """How axes are turned: new axis i is old axis `axes[i]`, reversed where `flips[i]`."""

    axes: Index3
    flips: tuple[bool, bool, bool]

    @property
    def is_identity(self) -> bool:
        return self.axes == (0, 1, 2) and not any(self.flips)

    def turn(self, array: Array) -> Array:
        """A view on the array with its last three axes turned."""
        leading = array.ndim - 3
        turned = array.transpose(*range(leading), *(leading + axis for axis in self.axes))
        reversed_view: Array = turned[_reversing(self.flips)]
        return reversed_view

    def undo(self, array: Array) -> Array:
        """A view on the array with its last three axes turned back."""
        leading = array.ndim - 3
        unflipped: Array = array[_reversing(self.flips)]
        back = [self.axes.index(axis) for axis in range(3)]
        return unflipped.transpose(*range(leading), *(leading + axis for axis in back))

    def turn_grid(self, grid: Grid) -> Grid:
        """The grid of a turned array; each voxel stays where it is in space."""
        shape = [grid.shape[axis] for axis in self.axes]
        affine = grid.matrix
        turned = affine.copy()
        for new, (old, flip) in enumerate(zip(self.axes, self.flips, strict=True)):
            turned[:, new] = -affine[:, old] if flip else affine[:, old]
            if flip:
                turned[:, 3] += affine[:, old] * (grid.shape[old] - 1)
        return Grid.of(tuple(shape), turned)


def nearest_ras(grid: Grid) -> AxisOrder:
    """The turn that brings a grid nearest to RAS, the one that nibabel's `io_orientation` finds.

    Axes are assigned in the order of how clearly they point along one direction of space, each direction once, using
    the rotation nearest to the affine.
    """
    matrix = grid.matrix[:3, :3]
    left, _, right = np.linalg.svd(matrix / np.linalg.norm(matrix, axis=0))
    directions = left @ right
    axes, flips = [0, 0, 0], [False, False, False]
    for old in np.argsort(np.min(-(directions**2), axis=0), kind="stable"):
        new = int(np.argmax(np.abs(directions[:, old])))
        axes[new] = int(old)
        flips[new] = bool(directions[new, old] < 0)
        directions[new] = 0.0
    return AxisOrder(axes=(axes[0], axes[1], axes[2]), flips=(flips[0], flips[1], flips[2]))


def orientation_of(grid: Grid) -> str:
    """Where the axes of a grid point, as three letters such as "LPS"."""
    order = nearest_ras(grid)
    letters = {order.axes[new]: _DIRECTIONS[new][not order.flips[new]] for new in range(3)}
    return "".join(letters[old] for old in range(3))


def turn_onto(grid: Grid, target: Grid) -> AxisOrder | None:
    """The turn after which an array on `grid` lies on `target`, voxel on voxel; None if there is none.

    Both hold the same places of space then, and nothing is interpolated (`Grid.is_shared_with` says what counts as the
    same place).
    """
    # The usual case; the search takes milliseconds.
    if target.is_shared_with(grid):
        return next(_orders())
    order = nearest_turn(grid, target)
    return order if order is not None and target.is_shared_with(order.turn_grid(grid)) else None


def nearest_turn(grid: Grid, target: Grid) -> AxisOrder | None:
    """The turn that brings the voxels of `grid` nearest to those of `target`; None if the shapes differ in all turns.

    Of several that come equally near, as along an axis of one voxel, the one that changes least.
    """
    possible = [order for order in _orders() if tuple(grid.shape[axis] for axis in order.axes) == target.shape]
    # Rounding must not prefer a turn to none.
    return min(possible, key=lambda order: round(target.largest_difference_mm(order.turn_grid(grid)), 6), default=None)


def _orders() -> Iterator[AxisOrder]:
    """All 48, the one that changes nothing first."""
    for axes in itertools.permutations(range(3)):
        for flips in itertools.product((False, True), repeat=3):
            yield AxisOrder(axes=(axes[0], axes[1], axes[2]), flips=(flips[0], flips[1], flips[2]))


def _reversing(flips: tuple[bool, bool, bool]) -> tuple[Any, ...]:
    return (..., *(slice(None, None, -1) if flip else slice(None) for flip in flips))
