"""Changes of where a patch's voxels are taken from, as plain data that any implementation can take.

A step maps an array (c, x, y, z) to another; places count voxels from 0, with voxel centers at whole numbers. A plane
(c, x, y) is passed as (c, x, y, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3
from voxelocity.data.augment.steps.spatial.places import Places
from voxelocity.data.augment.steps.spatial.resize import Resize

Matrix = npt.NDArray[np.float64]
Interpolation = Literal["linear", "nearest"]
Beyond = Literal["zeros", "border", "reflection"]
"""What lies beyond the array, as in torch's `grid_sample`: zeros, the outermost voxel, or a mirror image about the
faces of the outermost voxels (half a voxel beyond their centers), or about their centers with `align_corners`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Crop:
    """The box that begins at `start` and has `shape`; voxels beyond the array are `fill`."""

    start: Index3
    shape: Index3
    fill: float = 0.0

    def to_source(self, shape: Index3) -> Matrix:
        """(4, 4): from a place in the result of a step on an array of `shape` to its place in that array."""
        matrix = np.eye(4)
        matrix[:3, 3] = self.start
        return matrix

    def shape_after(self, shape: Index3) -> Index3:
        """Of the result on an array of `shape`."""
        return self.shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Flip:
    """The array reversed along the given axes."""

    axes: tuple[bool, bool, bool]

    def to_source(self, shape: Index3) -> Matrix:
        """As `Crop.to_source`."""
        matrix = np.eye(4)
        for axis, side in enumerate(shape):
            if self.axes[axis]:
                matrix[axis, axis], matrix[axis, 3] = -1.0, side - 1.0
        return matrix

    def shape_after(self, shape: Index3) -> Index3:
        """As `Crop.shape_after`."""
        return shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The array turned by quarter turns in the plane of two axes, as `numpy.rot90` turns it: from the first to the
    second."""

    quarter_turns: int
    axes: tuple[int, int]

    def to_source(self, shape: Index3) -> Matrix:
        """As `Crop.to_source`."""
        matrix = np.eye(4)
        first, second = self.axes
        sides = list(shape)
        for _ in range(self.quarter_turns % 4):
            # numpy.rot90 once: result[i, j] = source[j, side of the second axis - 1 - i].
            once = np.eye(4)
            once[[first, second]] = 0.0
            once[first, second] = 1.0
            once[second, first], once[second, 3] = -1.0, sides[second] - 1.0
            matrix = matrix @ once
            sides[first], sides[second] = sides[second], sides[first]
        return matrix

    def shape_after(self, shape: Index3) -> Index3:
        """As `Crop.shape_after`."""
        sides = list(shape)
        first, second = self.axes
        if self.quarter_turns % 2:
            sides[first], sides[second] = sides[second], sides[first]
        x, y, z = sides
        return (x, y, z)


@dataclass(frozen=True, kw_only=True, eq=False)
class Warp:
    """Each voxel of the result taken from its place in the array, between voxels.

    Attributes:
        places: of the result's voxels.
        shape: of the result.
        interpolation: trilinear, or the nearest voxel, with halfway places rounded to the even one.
        beyond: what lies beyond the array.
        matrix: (4, 4), the result of `to_source`, for code that tracks where the result lies.
    """

    places: Places
    shape: Index3
    interpolation: Interpolation
    beyond: Beyond
    matrix: Matrix

    def to_source(self, shape: Index3) -> Matrix:
        """As `Crop.to_source`, given by the step's maker."""
        return self.matrix

    def shape_after(self, shape: Index3) -> Index3:
        """As `Crop.shape_after`."""
        return self.shape


ExactStep = Crop | Flip | Turn
SpatialStep = ExactStep | Warp | Resize
