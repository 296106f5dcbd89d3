"""Where a warp finds its voxels, with the same roundings as its source: a label's nearest voxel depends on them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Maps coordinates of the result's voxels to places in the array, by sums of float32 products in a fixed order.

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
            term = torch.from_numpy(line).to(device).view(along).expand(sides)
            if self.shifts is not None:
                term = (term.double() + torch.from_numpy(self.shifts[axis]).to(device).double()).float()
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
def sampler_is_fused(num_spatial: int) -> bool:
    """Whether torch's `grid_sample` maps -1..1 to voxels with one rounding on this processor.

    With AVX, two axes take one rounding, three do not.
    """
    # Rounded twice, this place lies halfway between the first two of three voxels; rounded once, nearer to the second.
    grid = torch.zeros((1,) * (num_spatial + 1) + (num_spatial,), dtype=torch.float64)
    grid[..., 0] = 2.0 / 3.0 * -0.5
    line = torch.arange(3.0, dtype=torch.float64).view(*(1,) * (num_spatial + 1), 3)
    return bool(torch.nn.functional.grid_sample(line, grid, mode="nearest", align_corners=False).item())
