"""The boxes of a sliding window. Reads no voxels."""

from __future__ import annotations

from itertools import product

from voxelocity.core.errors import ConfigError
from voxelocity.core.region import Index3, Region


def grid_regions(shape: Index3, patch_shape: Index3, overlap: float) -> tuple[Region, ...]:
    """Boxes of one shape that together cover every voxel of a volume, z fastest.

    Neighbors start `patch * (1 - overlap)` voxels apart, rounded down; the last box of an axis is moved back to end
    with the volume. Where the volume is smaller than the patch, one centered box reaches beyond it. These are the
    positions of MONAI's `sliding_window_inference`.

    Args:
        shape: of the volume along (x, y, z).
        patch_shape: of the boxes.
        overlap: share of a box that its neighbor covers too, from 0 to below 1.

    Raises:
        ConfigError: the overlap is out of range, or a side is below 1.
    """
    if not 0.0 <= overlap < 1.0:
        raise ConfigError(f"patch.grid: overlap {overlap} is not valid; choose from 0 to below 1, for example 0.5")
    if min(*shape, *patch_shape) < 1:
        raise ConfigError(f"patch.grid: a volume of {shape} voxels cannot be covered by patches of {patch_shape}")
    starts = [axis_starts(n, side, overlap) for n, side in zip(shape, patch_shape, strict=True)]
    dx, dy, dz = patch_shape
    return tuple(Region((x, y, z), (x + dx, y + dy, z + dz)) for x, y, z in product(*starts))


def axis_starts(num_voxels: int, side: int, overlap: float) -> list[int]:
    """The first voxels of the boxes along one axis, ascending; see `grid_regions`."""
    last = num_voxels - side
    if last <= 0:
        return [-(-last // 2)]
    stride = max(int(side * (1.0 - overlap)), 1)
    return [*range(0, last, stride), last]
