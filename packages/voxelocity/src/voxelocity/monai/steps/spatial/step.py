"""Changes of where a patch's voxels are taken from, as plain data that any implementation can take.

A step maps an array (c, x, y, z) to another; positions count voxels from 0, with voxel centers at whole numbers. A
plane (c, x, y) is passed as (c, x, y, 1). Each step has two methods: `to_source(shape)` is the matrix (4, 4) from a
position in its result on an array of `shape` to that in the array; `shape_after(shape)` is the shape of that result.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.region import Index3
from voxelocity.monai.steps.engine import send

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
_CPU = torch.device("cpu")
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
        matrix = np.eye(4)
        matrix[:3, 3] = self.start
        return matrix

    def shape_after(self, shape: Index3) -> Index3:
        return self.shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Flip:
    """The array reversed along the given axes."""

    axes: tuple[bool, bool, bool]

    def to_source(self, shape: Index3) -> Matrix:
        matrix = np.eye(4)
        for axis, side in enumerate(shape):
            if self.axes[axis]:
                matrix[axis, axis], matrix[axis, 3] = -1.0, side - 1.0
        return matrix

    def shape_after(self, shape: Index3) -> Index3:
        return shape


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The array turned by quarter turns in the plane of two axes, as `numpy.rot90` turns it: from the first to the
    second."""

    quarter_turns: int
    axes: tuple[int, int]

    def to_source(self, shape: Index3) -> Matrix:
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
        sides = list(shape)
        first, second = self.axes
        if self.quarter_turns % 2:
            sides[first], sides[second] = sides[second], sides[first]
        x, y, z = sides
        return (x, y, z)


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingGrid:
    """Maps coordinates of the result's voxels to positions in the array, by sums of float32 products in a fixed order.

    With the same roundings as the library that it stands in for: a label's nearest voxel depends on them.

    Voxel (i, j, k) has the coordinates `(lines[0][i], lines[1][j], lines[2][k], 1)`, with its shift added to the first
    three. Along axis a of the array its place is the sum of `theta[a]` times them, times `scale[a]`, where -1 and 1 are
    the outer faces of the array's outermost voxels, or their centers with `align_corners`.

    Attributes:
        lines: (x,), (y,), (z,) float32 of the result's axes, each rising, falling or constant.
        theta: (3, 4) float32.
        order: of the three products in the sum; the fourth comes last.
        is_fused: whether a product is added before it is rounded, as by a processor's fused instruction.
        is_wide: whether everything after the sum uses float64 instead of float32.
        scale: (3,) float64, or None for 1.
        align_corners: as of torch's `grid_sample`.
        shifts: (3, x, y, z) float32, or None.
        num_spatial: 2 if the array is a plane, its last axis of one voxel, which torch samples with other roundings.
    """

    lines: tuple[Floats, Floats, Floats]
    theta: Floats
    order: tuple[int, int, int]
    is_fused: bool
    is_wide: bool
    scale: npt.NDArray[np.float64] | None = None
    align_corners: bool = False
    shifts: Floats | None = None
    num_spatial: int = 3

    def normalized(self, device: torch.device) -> torch.Tensor:
        """(x, y, z, 3) as torch's `grid_sample` takes them, the last axis first; float64 if `is_wide`."""
        sides = tuple(map(len, self.lines))
        terms = []
        for axis, line in enumerate(self.lines):
            along = [1, 1, 1]
            along[axis] = -1
            term = send(line, device).view(along).expand(sides)
            if self.shifts is not None:
                term = (term.double() + send(self.shifts[axis], device).double()).float()
            terms.append(term)
        summed = [self._summed(terms, axis) for axis in range(3)]
        if self.is_wide:
            summed = [value.double() for value in summed]
        if self.scale is not None:
            summed = [value * factor for value, factor in zip(summed, self.scale.tolist(), strict=True)]
        return torch.stack(summed[::-1], dim=-1)

    def _summed(self, terms: list[torch.Tensor], axis: int) -> torch.Tensor:
        total = torch.zeros_like(terms[0])
        for number in (*self.order, 3):
            # The product of two float32 is exact in float64.
            factor = float(self.theta[axis, number])
            product = terms[number].double() * factor if number < 3 else torch.full_like(total, factor).double()
            total = (product + total.double()).float() if self.is_fused else total + product.float()
        return total


@functools.cache
def sampler_is_fused(num_spatial: int, device: torch.device = _CPU) -> bool:
    """Whether torch's `grid_sample` maps -1..1 to voxels with one rounding on this device; it is asked once.

    On processors with AVX, two axes take one rounding, three do not.
    """
    # Rounded twice, this place lies halfway between the first two of three voxels; rounded once, nearer to the second.
    grid = torch.zeros((1,) * (num_spatial + 1) + (num_spatial,), dtype=torch.float64)
    grid[..., 0] = 2.0 / 3.0 * -0.5
    line = torch.arange(3.0, dtype=torch.float64).view(*(1,) * (num_spatial + 1), 3)
    taken = torch.nn.functional.grid_sample(line.to(device), grid.to(device), mode="nearest", align_corners=False)
    return bool(taken.item())


@dataclass(frozen=True, kw_only=True, eq=False)
class Warp:
    """Each voxel of the result taken from its place in the array, between voxels.

    Attributes:
        positions: of the result's voxels.
        shape: of the result.
        interpolation: trilinear, or the nearest voxel, with halfway positions rounded to the even one.
        beyond: what lies beyond the array.
        matrix: (4, 4), the result of `to_source`, for code that tracks where the result lies.
    """

    positions: SamplingGrid
    shape: Index3
    interpolation: Interpolation
    beyond: Beyond
    matrix: Matrix

    def to_source(self, shape: Index3) -> Matrix:
        return self.matrix

    def shape_after(self, shape: Index3) -> Index3:
        return self.shape


@dataclass(frozen=True, kw_only=True, eq=False)
class AxisWeights:
    """The voxels along one axis as weighted sums of those of the array.

    Attributes:
        index: (n, taps) int32, which voxels of the array.
        weight: (n, taps) float32. With one tap of weight 1 everywhere, voxels are copied.
    """

    index: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float32]

    def after(self, first: AxisWeights) -> AxisWeights:
        """The table of both: this one applied to the result of `first`."""
        num = len(self.index)
        weight = first.weight[self.index] * self.weight[:, :, None]
        return AxisWeights(index=first.index[self.index].reshape(num, -1), weight=weight.reshape(num, -1))

    def rows(self, rows: npt.NDArray[np.intp]) -> AxisWeights:
        """The table of these rows; row -1 is a voxel of value 0."""
        weight = np.where(rows[:, None] < 0, np.float32(0.0), self.weight[rows])
        return AxisWeights(index=self.index[rows], weight=weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class Resize:
    """The array resampled axis by axis.

    Attributes:
        tables: of x, y and z.
        matrix: (4, 4), the result of `to_source`.
    """

    tables: tuple[AxisWeights, AxisWeights, AxisWeights]
    matrix: Matrix

    def to_source(self, shape: Index3) -> Matrix:
        return self.matrix

    def shape_after(self, shape: Index3) -> Index3:
        x, y, z = (len(table.index) for table in self.tables)
        return (x, y, z)


ExactStep = Crop | Flip | Turn
SpatialStep = ExactStep | Warp | Resize
