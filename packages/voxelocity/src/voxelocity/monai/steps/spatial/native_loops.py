"""Compiled loops of spatial steps: `sample.c` fills a warp's results, `resize.c` resamples axis by axis.

Results and tables are float32 and int64, in C order. A wrong dtype, order or shape is a ValueError, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, flatten, need_shapes
from voxelocity.core.volume import Array
from voxelocity.monai.steps.spatial.step import AxisWeights, Beyond, Floats

_BEYOND: dict[Beyond, int] = {"zeros": 0, "border": 1, "reflection": 2}
_F4, _I8, _OUT = "in float32", "in int64", "out float32"

_sample = NativeLoop(
    "sample", _F4, _F4, _F4, _F4, "in stored", _F4, _I8, "in uint8", _F4, _OUT, "in uint8", _F4, _OUT,
    stored=("float64", "float32"),
)  # fmt: skip
_resize = NativeLoop(
    "resize", "in stored", _I8, _I8, _F4, _I8, _F4, _I8, _F4, _F4, _OUT, stored=("uint8", "int16", "float32")
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A part of an array that a loop fills; the loop's axes 0, 1 and 2 are in the part's memory order.

    Attributes:
        whole: float32 in C order.
        part: (c, n0, n1, n2), a view of it, of any memory order.
        scale: (c, 2) float32: a voxel's value times the first plus the second.
    """

    whole: Floats
    part: Floats
    scale: Floats

    @property
    def steps(self) -> list[int]:
        """Where in `whole` voxel (0, 0, 0) of channel 0 lies, and the steps of channels and axes."""
        first = self.part.__array_interface__["data"][0] - self.whole.__array_interface__["data"][0]
        return [number // self.whole.itemsize for number in (first, *self.part.strides)]

    def check(self, loop: str, num_channels: int) -> None:
        """Raises ValueError unless the part lies in the array and has this many channels."""
        first, *steps = self.steps
        spans = [(side - 1) * step for side, step in zip(self.part.shape, steps, strict=True)]
        low, high = first + sum(min(span, 0) for span in spans), first + sum(max(span, 0) for span in spans)
        need_shapes(loop, scale=(self.scale, (num_channels, 2)), part=(self.part, (num_channels, *self.part.shape[1:])))
        if self.part.size and not 0 <= low <= high < self.whole.size:
            raise ValueError(f"loop {loop}: voxels {low} to {high} are not all in an array of {self.whole.size}")


def sample(
    lines: Sequence[Floats],
    theta: Floats,
    order: npt.NDArray[np.int64],
    scale: Array,
    shifts: Floats,
    rules: tuple[bool, bool, bool, Beyond],
    box: tuple[Sequence[int], Sequence[int]],
    parts: Sequence[tuple[Array, Target] | None],
) -> None:
    """Fills up to two results at the same positions: one interpolated, one from the nearest voxels.

    The results' axes are 0, 1 and 2 in their memory order.

    Args:
        lines: (n,) float32 of each axis, `SamplingGrid.lines`.
        theta: (3, 4) float32, columns of the results' axes and 1.
        order: (4,) which columns are summed first.
        scale: (3,), or size 0 for 1; float64 or float32, for all computations after the sums.
        shifts: (3, n0, n1, n2) float32 of the columns of theta, or size 0.
        rules: `SamplingGrid.is_fused`, `SamplingGrid.align_corners`, `sampler_is_fused`, and what lies beyond.
        box: sides (3,) of the array, voxels, and its voxel at which the box begins, without its ring.
        parts: what is interpolated, from a box of int16 or float32, then what is taken from the nearest voxels, from
            one of uint8 or float32: the box (c, bx, by, bz) in C order, with its ring, fewer than 2**31 voxels, and
            what is filled; None for neither.
    """
    shape = [len(line) for line in lines]
    (sides, first), (is_fused, align_corners, is_once, beyond) = box, rules
    need_shapes("sample", theta=(theta, (3, 4)), order=(order, (4,)))
    for name, array, wanted in (("scale", scale, (3,)), ("shifts", shifts, (3, *shape))):
        if array.size:
            need_shapes("sample", **{name: (array, wanted)})
    flags = (is_fused, align_corners, is_once, _BEYOND[beyond], scale.size > 0, shifts.size > 0)
    sizes = [*shape, *order, *flags, *sides, *first]
    memory: list[Array] = []
    for part, dtype in zip(parts, (np.int16, np.uint8), strict=True):
        voxels, target = part or _nothing(dtype)
        if voxels.dtype not in (dtype, np.float32) or (part and min(voxels.shape[1:]) < 2):
            raise ValueError(f"loop sample: a box of {voxels.dtype} {voxels.shape}")
        target.check("sample", len(voxels))
        if part:
            need_shapes("sample", part=(target.part, (len(voxels), *shape)))
        sizes += [*voxels.shape, *target.steps, voxels.dtype == np.float32]
        memory += [voxels.reshape(-1).view(np.uint8), target.scale, target.whole]
    _sample(*lines, theta, scale, shifts, np.array(sizes, dtype=np.int64), *memory)


def _nothing(dtype: Any) -> tuple[Array, Target]:
    none = np.zeros((0, 1, 1, 1), np.float32)
    return none.astype(dtype), Target(whole=none, part=none, scale=np.zeros((0, 2), np.float32))


def resize(source: Array, along: Sequence[AxisWeights], target: Target) -> None:
    """Fills a result whose voxels are weighted sums along each axis.

    Args:
        source: (c, x, y, z) uint8, int16 or float32, of any memory order; fastest along z.
        along: of x, y and z.
        target: what is filled.
    """
    target.check("resize", len(source))
    need_shapes("resize", part=(target.part, (len(source), *(len(table.index) for table in along))))
    line, steps = flatten(source)
    shapes = [table.index.shape for table in along]
    sizes = [*source.shape, *steps, *(rows for rows, _ in shapes), *(taps for _, taps in shapes), *target.steps]
    tables: list[Array] = []
    for axis, table in enumerate(along):
        need_shapes("resize", weight=(table.weight, table.index.shape))
        # Those of z are transposed, so that the loop along z runs along their memory.
        index, weight = (table.index.T, table.weight.T) if axis == 2 else (table.index, table.weight)
        tables += [np.ascontiguousarray(index, dtype=np.int64), np.ascontiguousarray(weight)]
    _resize(line, np.array(sizes, dtype=np.int64), *tables, target.scale, target.whole)
