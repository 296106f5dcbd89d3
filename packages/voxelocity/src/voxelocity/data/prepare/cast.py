"""The final form of a prepared case: C-contiguous, in the dtype that the cache keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from voxelocity.core.contracts import StageEffect
from voxelocity.core.memory_order import in_c_order, planes, turn
from voxelocity.core.volume import Array, Scaling, Volume, VolumeSpec
from voxelocity_observe.core.errors import ScanError

_STEPS = 65_000
"""Steps of an int16 that a channel's range is spread over; the rest is room for rounding its center."""
_COARSEST = 0.01
"""Widest step between kept values, as a share of the interquartile range. Beyond it int16 would leave tissue only a few
levels, for example with one voxel of 1e6 in the image."""
_NUM_SAMPLES = 2**17
_EXACT_IN_INT16 = ("int8", "int16", "bool")


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Stage: image (c, x, y, z) in its kept dtype and label as `index_dtype`, both C-contiguous.

    "smallest" keeps uint8, and what int16 can hold, exactly. Anything else becomes int16 with a `Scaling` whose slope
    is a power of two (times that of the volume so far): whole numbers within 65,000 of each other stay exact, other
    values move by at most 1/65,000 of their channel's range. Where that is more than 1 % of the interquartile range of
    a channel, the image is kept as float16 instead, or as float32 where that too is coarser. "float32" and "float16"
    apply the volume's scaling.

    This is the only stage that changes the order in memory. Arrays that are already in this form are passed on.
    """

    dtype: Literal["smallest", "float32", "float16"]

    def describe(self, spec: VolumeSpec) -> StageEffect:
        # The result for all images except those with far outliers, which only the voxels show.
        dtype = ("uint8" if spec.dtype == "uint8" else "int16") if self.dtype == "smallest" else self.dtype
        new = VolumeSpec(num_channels=spec.num_channels, grid=spec.grid, dtype=dtype)
        return StageEffect(spec=new, scratch_bytes=0)

    def __call__(self, volume: Volume) -> Volume:
        """The volume in its final form.

        Raises:
            ScanError: an intensity is too large for `dtype`.
        """
        if volume.label is not None:
            is_wide = volume.label.dtype == np.uint16
            volume = volume.with_(label=in_c_order(volume.label, "uint16" if is_wide else "uint8"))
        if self.dtype == "smallest":
            return _with_smallest_image(volume)
        return _as_float(volume, self.dtype)


def _as_float(volume: Volume, dtype: str) -> Volume:
    if volume.scaling:
        volume = volume.with_(image=volume.intensities(), scaling=())
    _check_range(volume, dtype)
    return volume.with_(image=in_c_order(volume.image, dtype))


def _with_smallest_image(volume: Volume) -> Volume:
    image = volume.image
    if image.dtype == np.uint8:
        return volume.with_(image=in_c_order(image, "uint8"))
    if image.dtype.name in _EXACT_IN_INT16:
        return volume.with_(image=in_c_order(image, "int16"))
    steps = [_step_and_center(channel) for channel in image]
    contrasts = [_contrast(channel) for channel in image]
    if any(step > contrast.widest_step for (step, _), contrast in zip(steps, contrasts, strict=True)):
        largest = max(-float(image.min()), float(image.max()))
        is_fine = not volume.scaling and largest <= float(np.finfo("float16").max)
        is_fine = is_fine and all(
            np.spacing(np.float16(contrast.level)) <= contrast.widest_step for contrast in contrasts
        )
        return _as_float(volume, "float16" if is_fine else "float32")
    stored = np.empty(image.shape, dtype=np.int16)
    so_far = volume.scaling or (Scaling(),) * len(image)
    scaling: list[Scaling] = []
    for source, target, outer, (step, center) in zip(image, stored, so_far, steps, strict=True):
        for plane, new_plane in planes(source, target):
            wide = plane.astype(np.float64)
            wide -= center
            wide *= 1.0 / step
            np.rint(wide, out=wide)
            turn(wide, new_plane)
        scaling.append(Scaling(slope=step * outer.slope, inter=center * outer.slope + outer.inter))
    return volume.with_(image=stored, scaling=tuple(scaling))


def _step_and_center(channel: Array) -> tuple[float, float]:
    """A power of two that cuts the range into at most `_STEPS`, and its multiple next to the range's middle."""
    low, high = float(channel.min()), float(channel.max())
    width = high - low
    step = 1.0 if width == 0.0 else 2.0 ** max(-1000, math.ceil(math.log2(width / _STEPS)))
    if width == 0.0:
        return step, low
    return step, round((low + width / 2.0) / step) * step


@dataclass(frozen=True, kw_only=True)
class _Contrast:
    """How finely a channel's values must be kept.

    Attributes:
        widest_step: between kept values; infinite if there is nothing to distinguish.
        level: how far from 0 the values are that must stay distinct.
    """

    widest_step: float
    level: float


def _contrast(channel: Array) -> _Contrast:
    """Estimates the contrast from evenly spaced voxels, about `_NUM_SAMPLES` if there are more.

    The quartiles are those of all values except the most frequent one: background may fill nine tenths of a scan. A
    value that is both quartiles, such as the end of a window, is left out too.
    """
    every = math.ceil(max(1.0, channel.size / _NUM_SAMPLES) ** (1 / 3))
    sample = channel[::every, ::every, ::every].astype(np.float64).reshape(-1)
    values, counts = np.unique(sample, return_counts=True)
    left = sample[sample != values[counts.argmax()]]
    while left.size > 0:
        low, high = (float(quartile) for quartile in np.quantile(left, (0.25, 0.75)))
        if high > low:
            return _Contrast(widest_step=_COARSEST * (high - low), level=max(abs(low), abs(high)))
        left = left[left != low]
    # A few values, as in a map of classes: they must stay distinct.
    gaps = np.diff(values)
    return _Contrast(widest_step=float(gaps.min()) if gaps.size else math.inf, level=float(np.abs(values).max()))


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
