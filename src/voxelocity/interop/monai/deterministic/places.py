"""Where MONAI's `SpatialResample` takes its samples on a grid whose axes keep their directions: axis by axis.

The numbers come from MONAI's and torch's own functions, applied to one axis at a time, and follow torch's rules for
padding (ATen `GridSampler.h`), so that they are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from monai.networks.utils import to_norm_affine

from voxelocity.core.volume import Array

Indices = npt.NDArray[np.int64]
Padding = Literal["zeros", "border", "reflection"]

_SPATIAL_AXES = 3
_MAX_SLANT_VOXEL = 1e-7
"""How far other axes may move a sample before the axes count as rotated; rounding of a rotated affine: 1e-13."""
_MARGIN_VOXEL = 1e-9
"""Added to that when deciding whether a sample could fall to the other neighbor."""


@dataclass(frozen=True)
class AxisPlaces:
    """Samples along one axis.

    Attributes:
        places_voxel: (n,) in voxels of the old axis, after padding was applied; outside of it where zeros are read.
        num_before: number of voxels of the old axis.
        slant_voxel: how far the other axes move a sample, at most.
    """

    places_voxel: Array
    num_before: int
    slant_voxel: float

    @property
    def is_nearest_certain(self) -> bool:
        """Whether no sample is so close to the middle of two voxels that the slant could decide."""
        if self.slant_voxel == 0.0:
            return True
        from_middle = np.abs(self.places_voxel - np.floor(self.places_voxel) - 0.5)
        return bool((from_middle > self.slant_voxel + _MARGIN_VOXEL).all())

    def nearest(self) -> Indices:
        """Indices of the voxels to read, -1 for zero; of two at the same distance the even one, as in torch."""
        index: Indices = np.rint(self.places_voxel).astype(np.int64)
        index[(index < 0) | (index >= self.num_before)] = -1
        return index

    def neighbors(self) -> tuple[Indices, Indices, Array, Array]:
        """Indices (n,) of the two voxels around each sample and their weights in float64, 0 for those outside."""
        last = self.num_before - 1
        places = self.places_voxel.astype(np.float64)
        below = np.floor(places)
        share = places - below
        low, high = below.astype(np.int64), below.astype(np.int64) + 1
        weight_low = np.where((low >= 0) & (low <= last), 1.0 - share, 0.0)
        weight_high = np.where((high >= 0) & (high <= last), share, 0.0)
        return np.clip(low, 0, last), np.clip(high, 0, last), weight_low, weight_high


def axis_places(
    xform: torch.Tensor,
    old_shape: Sequence[int],
    new_shape: Sequence[int],
    *,
    dtype: torch.dtype,
    padding: Padding,
    align_corners: bool,
) -> tuple[AxisPlaces, ...] | None:
    """The samples of the three axes, or None if an axis does not come from a single old axis.

    Args:
        xform: (4, 4) from new to old indices.
        old_shape: of three axes.
        new_shape: of three axes.
        dtype: that torch computes in.
        padding: torch's rule for samples outside.
        align_corners: torch's flag.
    """
    theta = to_norm_affine(xform[None].to(dtype), list(old_shape), list(new_shape), align_corners, False)
    matrix = theta[0, :_SPATIAL_AXES, :_SPATIAL_AXES].numpy().astype(np.float64)
    # Sets the diagonal to zero: subtracting it from the sum would lose the small entries next to it.
    aside = np.abs(matrix)
    np.fill_diagonal(aside, 0.0)
    slants = aside.sum(axis=1) * np.array(old_shape) / 2
    if not np.isfinite(matrix).all() or slants.max() > _MAX_SLANT_VOXEL:
        return None
    # torch counts axes from the last: x of its grid is our z.
    reverse = torch.arange(_SPATIAL_AXES - 1, -1, -1)
    theta[:, :_SPATIAL_AXES] = theta[:, reverse]
    theta[:, :, :_SPATIAL_AXES] = theta[:, :, reverse]
    found = []
    for axis, (num_before, num_after) in enumerate(zip(old_shape, new_shape, strict=True)):
        normalized = _normalized_places(theta, axis, num_after, align_corners)
        places = _padded(_in_voxels(normalized, num_before, align_corners), num_before, padding, align_corners)
        found.append(AxisPlaces(places, num_before, float(slants[axis])))
    return tuple(found)


def _normalized_places(theta: torch.Tensor, axis: int, num: int, align_corners: bool) -> Array:
    """Samples along an axis of a grid (z, y, x), from -1 to 1 over the old axis."""
    component = _SPATIAL_AXES - 1 - axis
    if num == 1:
        # In the middle; torch would warn.
        middle: Array = theta[0, component, _SPATIAL_AXES:].numpy()
        return middle
    size = [1, 1, *(num if other == axis else 2 for other in range(_SPATIAL_AXES))]
    grid = torch.nn.functional.affine_grid(theta[:, :_SPATIAL_AXES], size, align_corners=align_corners)
    line: Array = grid[0, ..., component].movedim(axis, 0)[:, 0, 0].numpy()
    return line


def _in_voxels(normalized: Array, num: int, align_corners: bool) -> Array:
    one, two, size = (normalized.dtype.type(number) for number in (1, 2, num))
    voxel: Array = ((normalized + one) * size - one) / two
    return ((normalized + one) / two) * (size - one) if align_corners else voxel


def _padded(places: Array, num: int, padding: Padding, align_corners: bool) -> Array:
    if padding == "zeros":
        return places
    number = places.dtype.type
    if padding == "reflection":
        low, high = (number(0), number(num - 1)) if align_corners else (number(-0.5), number(num - 0.5))
        span = high - low
        if span == 0:
            places = np.zeros_like(places)
        else:
            away = np.abs(places - low)
            rest, turns = np.fmod(away, span), np.floor(away / span)
            places = np.where(turns % 2 == 0, rest + low, span - rest + low)
    inside: Array = np.clip(places, number(0), number(num - 1))
    return inside
