"""Turns a scan to the nearest RAS axes by exchanging and reversing axes. No voxel value changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.contracts import StageEffect
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Grid, Volume, VolumeSpec

STEP = "orient"


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


@dataclass(frozen=True)
class OrientToRAS:
    """Stage: axes exchanged and reversed so that (x, y, z) point right, anterior and superior as nearly as possible.

    The image and label of the result are views on those of the argument. Oblique scans stay oblique.
    """

    def describe(self, spec: VolumeSpec) -> StageEffect:
        grid = nearest_ras(spec.grid).turn_grid(spec.grid)
        spec = VolumeSpec(num_channels=spec.num_channels, grid=grid, dtype=spec.dtype)
        return StageEffect(spec=spec, scratch_bytes=0)

    def fingerprint(self) -> str:
        return "orient(RAS)"

    def __call__(self, volume: Volume) -> Volume:
        order = nearest_ras(volume.grid)
        if order.is_identity:
            return volume
        return volume.with_(
            image=order.turn(volume.image),
            label=None if volume.label is None else order.turn(volume.label),
            grid=order.turn_grid(volume.grid),
            trace=(*volume.trace, orient_record(order)),
        )


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


def orient_record(order: AxisOrder) -> dict[str, Any]:
    """The record of a turn in a volume's trace."""
    return {"step": STEP, "axes": list(order.axes), "flips": list(order.flips)}


def undo_orient(array: Array, record: Mapping[str, Any]) -> Array:
    """A view on the array (..., x, y, z) with the axes that the scan had before this step."""
    x, y, z = record["axes"]
    flip_x, flip_y, flip_z = record["flips"]
    return AxisOrder(axes=(int(x), int(y), int(z)), flips=(bool(flip_x), bool(flip_y), bool(flip_z))).undo(array)


def _reversing(flips: tuple[bool, bool, bool]) -> tuple[Any, ...]:
    return (..., *(slice(None, None, -1) if flip else slice(None) for flip in flips))
