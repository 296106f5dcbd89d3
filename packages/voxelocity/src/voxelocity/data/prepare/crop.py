"""Crops the empty border of a scan: keeps the box of voxels that are not zero in some channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.contracts import StageEffect
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array, Grid, Volume, VolumeSpec

STEP = "crop"
_SLAB_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class CropToNonzero:
    """Stage: keeps the box that holds every voxel that is not zero in some channel, and `margin_voxel` around it.

    The label does not matter, as a scan to predict has none. A scan of zeros is kept whole. The image and label of the
    result are views on those of the argument. With `positive_only`, a voxel counts if it is above zero, as in MONAI.
    """

    margin_voxel: int = 0
    positive_only: bool = False

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The spec unchanged, as an upper bound: only the voxels show the box."""
        return StageEffect(spec=spec, scratch_bytes=min(_SLAB_BYTES, spec.image_bytes))

    def fingerprint(self) -> str:
        kind = "positive" if self.positive_only else "nonzero"
        return f"crop({kind}, margin_voxel={self.margin_voxel})"

    def __call__(self, volume: Volume) -> Volume:
        box = nonzero_box(volume.image > 0 if self.positive_only else volume.image)
        margin = self.margin_voxel
        start = (box.start[0] - margin, box.start[1] - margin, box.start[2] - margin)
        stop = (box.stop[0] + margin, box.stop[1] + margin, box.stop[2] + margin)
        region = Region(start, stop).clip(volume.grid.shape)
        if region == Region.whole(volume.grid.shape):
            return volume
        record = {"step": STEP, "start": list(region.start), "shape": list(volume.grid.shape)}
        return volume.with_(
            image=volume.image[(slice(None), *region.slices)],
            label=None if volume.label is None else volume.label[region.slices],
            grid=_grid_of(volume.grid, region),
            trace=(*volume.trace, record),
        )


def nonzero_box(image_cxyz: Array) -> Region:
    """The smallest box that holds every voxel not zero in some channel; the whole volume if all are zero."""
    shape: Index3 = (int(image_cxyz.shape[1]), int(image_cxyz.shape[2]), int(image_cxyz.shape[3]))
    found = [np.zeros(n, dtype=bool) for n in shape]
    # Slabs along the slowest axis in memory, so that each is read once and in order.
    slow = max(range(3), key=lambda axis: abs(image_cxyz.strides[axis + 1]))
    for channel in image_cxyz:
        planes = np.moveaxis(channel, slow, 0)
        others = [found[axis] for axis in range(3) if axis != slow]
        thickness = max(1, _SLAB_BYTES // max(1, planes[:1].nbytes))
        for start in range(0, shape[slow], thickness):
            filled = planes[start : start + thickness] != 0
            found[slow][start : start + thickness] |= filled.any((1, 2))
            flat = filled.any(0)
            others[0] |= flat.any(1)
            others[1] |= flat.any(0)
    if not found[0].any():
        return Region.whole(shape)
    ends = [(int(np.argmax(line)), len(line) - int(np.argmax(line[::-1]))) for line in found]
    return Region((ends[0][0], ends[1][0], ends[2][0]), (ends[0][1], ends[1][1], ends[2][1]))


def undo_crop(array: Array, record: Mapping[str, Any]) -> Array:
    """The array (x, y, z) put back into zeros of the shape that the scan had before this step. A new array.

    A step that added voxels has negative starts; these voxels are left out.
    """
    restored = np.zeros([int(n) for n in record["shape"]], dtype=array.dtype)
    inside, taken = [], []
    for start, length, num in zip(map(int, record["start"]), array.shape, restored.shape, strict=True):
        inside.append(slice(max(0, start), min(num, start + length)))
        taken.append(slice(max(0, -start), min(length, num - start)))
    restored[tuple(inside)] = array[tuple(taken)]
    return restored


def _grid_of(grid: Grid, region: Region) -> Grid:
    affine = grid.matrix
    affine[:, 3] = affine @ [*region.start, 1.0]
    return Grid.of(region.shape, affine)
