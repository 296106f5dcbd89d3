"""Boxes of a case: one at random, uniform or centered on foreground, or those of a sliding window. Reads no voxels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Literal

import numpy as np

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.patch.config import PatchConfig
from voxelocity_observe.core.errors import ConfigError

Spread = Literal["monai", "even"]


def choose_region(
    shape: Index3, foreground: Mapping[int, Array], config: PatchConfig, rng: np.random.Generator
) -> Region:
    """A box of `config.shape_voxel` voxels.

    With probability `foreground_share` it is centered on a foreground voxel: first a class of the case is drawn, all
    equally likely so that rare classes count, then one of its voxels. Otherwise, and in cases without foreground, every
    position is equally likely. Along an axis where the volume is larger than the patch, the box stays inside, so a
    voxel near the border may lie off its center; elsewhere the box is centered and reaches beyond the volume.

    Args:
        shape: of the volume.
        foreground: per class index, flat (C-order) indices into `shape`; class 0 and empty classes are left out.
        config: shape and share.
        rng: source of all choices.
    """
    classes = sorted(index for index, voxels in foreground.items() if index != 0 and len(voxels) > 0)
    patch_shape = config.shape_voxel
    if rng.random() < config.foreground_share and classes:
        voxels = foreground[classes[int(rng.integers(len(classes)))]]
        center = np.unravel_index(int(voxels[int(rng.integers(len(voxels)))]), shape)
        wanted = [int(voxel) - side // 2 for voxel, side in zip(center, patch_shape, strict=True)]
    else:
        wanted = [int(rng.integers(max(n - side, 0) + 1)) for n, side in zip(shape, patch_shape, strict=True)]
    x, y, z = (_start_inside(*axis) for axis in zip(wanted, shape, patch_shape, strict=True))
    return Region((x, y, z), (x + patch_shape[0], y + patch_shape[1], z + patch_shape[2]))


def grid_regions(shape: Index3, patch_shape: Index3, overlap: float, *, spread: Spread = "monai") -> tuple[Region, ...]:
    """Boxes of one shape that together cover every voxel of a volume, z fastest.

    Neighbors start `patch * (1 - overlap)` voxels apart, rounded down; the last box of an axis is moved back to end
    with the volume. Where the volume is smaller than the patch, one centered box reaches beyond it. These are the
    positions of MONAI's `sliding_window_inference`.

    Args:
        shape: of the volume along (x, y, z).
        patch_shape: of the boxes.
        overlap: share of a box that its neighbor covers too, from 0 to below 1.
        spread: "even": as many boxes as needed, at equal distances from the first to the last, as in nnU-Net.

    Raises:
        ConfigError: the overlap is out of range, or a side is below 1.
    """
    if not 0.0 <= overlap < 1.0:
        raise ConfigError(f"patch.grid: overlap {overlap} is not valid; choose from 0 to below 1, for example 0.5")
    if min(*shape, *patch_shape) < 1:
        raise ConfigError(f"patch.grid: a volume of {shape} voxels cannot be covered by patches of {patch_shape}")
    starts = [axis_starts(n, side, overlap, spread=spread) for n, side in zip(shape, patch_shape, strict=True)]
    dx, dy, dz = patch_shape
    return tuple(Region((x, y, z), (x + dx, y + dy, z + dz)) for x, y, z in product(*starts))


def axis_starts(num_voxels: int, side: int, overlap: float, *, spread: Spread = "monai") -> list[int]:
    """The first voxels of the boxes along one axis, ascending; see `grid_regions`."""
    last = num_voxels - side
    if last <= 0:
        return [-(-last // 2)]
    if spread == "even":
        num_steps = math.ceil(last / (side * (1.0 - overlap)))
        return sorted({round(last / num_steps * step) for step in range(num_steps + 1)})
    stride = max(int(side * (1.0 - overlap)), 1)
    return [*range(0, last, stride), last]


def _start_inside(wanted: int, num_voxels: int, side: int) -> int:
    spare = num_voxels - side
    return min(max(wanted, 0), spare) if spare >= 0 else -(-spare // 2)
