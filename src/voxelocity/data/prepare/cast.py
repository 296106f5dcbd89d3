"""The final form of a prepared case: C-contiguous, in the dtype that the cache keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import StageEffect
from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Array, Volume, VolumeSpec


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Stage: image (c, x, y, z) in `dtype` and label uint8, both C-contiguous.

    This is the one place where the order in memory is turned. Arrays that are in this form already are passed on.
    """

    dtype: Literal["float32", "float16"]

    def describe(self, spec: VolumeSpec) -> StageEffect:
        new = VolumeSpec(num_channels=spec.num_channels, grid=spec.grid, dtype=self.dtype)
        return StageEffect(spec=new, scratch_bytes=0, holds_gil=False)

    def fingerprint(self) -> str:
        return f"cast({self.dtype})"

    def __call__(self, volume: Volume) -> Volume:
        """The volume in its final form.

        Raises:
            ScanError: an intensity is too large for `dtype`.
        """
        _check_range(volume, self.dtype)
        label = None if volume.label is None else in_c_order(volume.label, "uint8")
        return volume.with_(image=in_c_order(volume.image, self.dtype), label=label)


def in_c_order(array: Array, dtype: npt.DTypeLike) -> Array:
    """The array, C-contiguous and in this dtype: itself where it is so already, else a copy."""
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    ordered = np.empty(array.shape, dtype=dtype)
    steps = [abs(step) for step in array.strides[-3:]]
    fastest = steps.index(min(steps))
    if fastest == 2:
        ordered[...] = array
        return ordered
    # Plane by plane across the axis that is fastest in neither order: each plane fits the cache, which halves the time
    # of turning 31 million float32 voxels (335 to 155 ms).
    across = (1 - fastest) - 3
    source, target = np.moveaxis(array, across, 0), np.moveaxis(ordered, across, 0)
    for plane, new_plane in zip(source, target, strict=True):
        new_plane[...] = plane
    return ordered


def _check_range(volume: Volume, dtype: str) -> None:
    largest = float(np.finfo(dtype).max)
    if volume.image.dtype == dtype or (volume.image.dtype.kind in "iu" and np.iinfo(volume.image.dtype).max <= largest):
        return
    low, high = float(volume.image.min()), float(volume.image.max())
    if max(-low, high) > largest:
        raise ScanError(
            f"prepare.cast: case '{volume.case_id}' has intensities from {low:g} to {high:g}, beyond the {largest:g} "
            f"that {dtype} holds; choose dtype: float32, or an intensity mode that scales them"
        )
