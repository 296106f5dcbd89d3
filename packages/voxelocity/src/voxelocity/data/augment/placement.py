"""Where a sample comes from: which box of the volume it needs, and at which point each of its voxels lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import ResidentBox
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array, Scaling
from voxelocity.data.augment.params import AugmentParams


@dataclass(frozen=True, kw_only=True)
class Source:
    """All stored voxels that one sample needs: `needed_box` of its volume, read.

    Attributes:
        image: (c, *shape) as stored, any memory order.
        label: (*shape) uint8.
        start: of the box in the volume.
        scaling: stored number to intensity, one for each channel; empty if they are the same.
    """

    image: Array
    label: Array
    start: Index3
    scaling: tuple[Scaling, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResidentSource:
    """As `Source`, with voxels that are already on the device.

    Attributes:
        box: where they lie.
        start: of the box in the volume.
        scaling: as there.
    """

    box: ResidentBox
    start: Index3
    scaling: tuple[Scaling, ...]


def scalings(sources: Sequence[Source | ResidentSource], num_channels: int) -> npt.NDArray[np.float32]:
    """(b, c, 2) float32: stored number to intensity, of every sample."""
    plain = ((1.0, 0.0),) * num_channels
    pairs = [
        [(channel.slope, channel.inter) for channel in source.scaling] if source.scaling else plain
        for source in sources
    ]
    return np.array(pairs, dtype=np.float32)


def slopes_and_inters(source: Source | ResidentSource, num_channels: int) -> npt.NDArray[np.float32]:
    """(c, 2) float32: stored number to intensity."""
    scaling = source.scaling or (Scaling(),) * num_channels
    return np.array([(channel.slope, channel.inter) for channel in scaling], dtype=np.float32)


def needed_box(params: AugmentParams, row: int, region: Region, shape: Index3) -> Region:
    """The part of a volume of this shape that sample `row` at `region` needs; the rest lies beyond the volume.

    Empty if the sample lies wholly outside the volume.
    """
    if not params.is_warped[row]:
        return region.clip(shape)
    half = _half(region)
    if params.is_elastic[row]:
        # A B-spline never leaves the range of its control points.
        half = half + np.abs(params.elastic[row].astype(np.float64)).max(axis=(1, 2, 3))
    reach = (np.abs(params.matrix[row].astype(np.float64)) * half).sum(axis=-1)
    middle = _center(region) + params.offset_voxel[row].astype(np.float64)
    # One voxel more on each side than exact arithmetic needs, as engines compute places in float32.
    start, stop = np.floor(middle - reach).astype(int) - 1, np.floor(middle + reach).astype(int) + 3
    (x0, y0, z0), (x1, y1, z1) = start.tolist(), stop.tolist()
    return Region((x0, y0, z0), (x1, y1, z1)).clip(shape)


def needed_boxes(params: AugmentParams, regions: Sequence[Region], shapes: Sequence[Index3]) -> list[Region]:
    """`needed_box` of every sample of a batch, computed at once."""
    corners = np.array([region.start + region.stop for region in regions])
    rows = np.flatnonzero(params.is_warped)
    if rows.size > 0:
        start, stop = corners[rows, :3], corners[rows, 3:]
        half, is_elastic = (stop - start - 1) / 2.0, params.is_elastic[rows]
        if is_elastic.any():
            half[is_elastic] += np.abs(params.elastic[rows[is_elastic]].astype(np.float64)).max(axis=(2, 3, 4))
        reach = (np.abs(params.matrix[rows].astype(np.float64)) * half[:, None, :]).sum(axis=-1)
        middle = (start + stop - 1) / 2.0 + params.offset_voxel[rows]
        corners[rows, :3] = np.floor(middle - reach) - 1
        corners[rows, 3:] = np.floor(middle + reach) + 3
    limits = np.array([shape + shape for shape in shapes])
    ends = np.minimum(np.maximum(corners, 0), limits).tolist()
    return [Region((a, b, c), (d, e, f)) for a, b, c, d, e, f in ends]


def middle_and_step(
    params: AugmentParams, row: int, region: Region, start: Index3
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Where the middle of the sample is found in a box that begins at `start`, and its step along each axis.

    Returns:
        middle (3,), and step (3, 3) with the step along patch axis j in column j. Elastic shifts `e` come on top, as
        `matrix @ e`.
    """
    step = params.matrix[row].astype(np.float64) * np.where(params.flips[row], -1.0, 1.0)[None, :]
    middle: npt.NDArray[np.float64] = _center(region) + params.offset_voxel[row].astype(np.float64) - np.array(start)
    return middle, step


def origin_and_step(
    params: AugmentParams, row: int, region: Region, start: Index3
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """As `middle_and_step`, with the place of voxel (0, 0, 0) instead of the middle."""
    middle, step = middle_and_step(params, row, region, start)
    return middle - step @ _half(region), step


def _half(region: Region) -> npt.NDArray[np.float64]:
    return (np.array(region.shape, dtype=np.float64) - 1.0) / 2.0


def _center(region: Region) -> npt.NDArray[np.float64]:
    center: npt.NDArray[np.float64] = (np.array(region.start, dtype=np.float64) + np.array(region.stop) - 1.0) / 2.0
    return center
