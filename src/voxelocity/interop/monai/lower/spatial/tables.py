"""Torch's `interpolate` along one axis as tables of voxels and weights, and what MONAI's padding adds to them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from voxelocity.data.augment.steps import Table

LINEAR = ("linear", "bilinear", "trilinear")
MODES = (*LINEAR, "nearest", "nearest-exact", "area")
PADDINGS = ("constant", "edge", "replicate", "reflect")


@functools.lru_cache(maxsize=1024)
def interpolation(side: int, size: int, mode: str, align_corners: bool) -> Table:
    """From an axis of `side` voxels to `size`, as `torch.nn.functional.interpolate`; `mode` is one of `MODES`."""
    if side == size:
        return Table(index=np.arange(side, dtype=np.int32)[:, None], weight=np.ones((side, 1), np.float32))
    if mode in LINEAR:
        return _linear(side, size, align_corners)
    if mode == "area":
        return _area(side, size)
    # Torch itself says which voxel it takes: it counts in float32.
    counted = torch.arange(side, dtype=torch.float32)[None, None]
    taken = torch.nn.functional.interpolate(counted, size=size, mode=mode)[0, 0].numpy()
    return Table(index=taken.astype(np.int32)[:, None], weight=np.ones((size, 1), np.float32))


def padded_rows(size: int, side: int, mode: str) -> Any:
    """Which of `size` voxels are where an axis is cropped or padded about its middle to `side`; -1 for a 0.

    As MONAI's `ResizeWithPadOrCrop`: the window begins at the middle minus half its size, and the larger half of the
    pad comes last.
    """
    if size > side:
        start = max(size // 2 - side // 2, 0)
        return np.arange(start, start + side)
    before = (side - size) // 2
    places = np.arange(side) - before
    if mode == "constant":
        return np.where((places < 0) | (places >= size), -1, places)
    if mode == "reflect":
        if side - size - before >= size:
            raise ValueError(
                f"voxelocity.monai: padding_mode 'reflect' cannot pad {size} voxels to {side}: a mirror image is too "
                "short; choose padding_mode='edge'"
            )
        places = np.abs(places)
        return np.where(places >= size, 2 * (size - 1) - places, places)
    return np.clip(places, 0, size - 1)


def _linear(side: int, size: int, align_corners: bool) -> Table:
    one = np.float32(1.0)
    numbers = np.arange(size, dtype=np.float32)
    if align_corners:
        place = numbers * (np.float32(side - 1) / np.float32(size - 1) if size > 1 else np.float32(0.0))
    else:
        half, scale = np.float32(0.5), np.float32(side) / np.float32(size)
        place = np.maximum(scale * (numbers + half) - half, np.float32(0.0))
    below = np.minimum(place.astype(np.int32), side - 1)
    above = np.minimum(below + 1, side - 1)
    share = np.clip(place - below.astype(np.float32), np.float32(0.0), one)
    return Table(index=np.stack([below, above], axis=1), weight=np.stack([one - share, share], axis=1))


def _area(side: int, size: int) -> Table:
    """Means of windows, as torch's `adaptive_avg_pool`."""
    numbers = np.arange(size)
    start, stop = numbers * side // size, -(-(numbers + 1) * side // size)
    taps = np.arange(int((stop - start).max()))
    index = start[:, None] + taps
    is_in = index < stop[:, None]
    weight = np.where(is_in, 1.0 / (stop - start)[:, None], 0.0).astype(np.float32)
    return Table(index=np.where(is_in, index, start[:, None]).astype(np.int32), weight=weight)
