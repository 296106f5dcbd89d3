"""Brings intensities to a common scale, case by case or with one scale for all."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import StageEffect
from voxelocity.core.volume import Array, Scaling, Volume, VolumeSpec, slabs
from voxelocity.data.prepare.config import IntensityConfig
from voxelocity.data.prepare.restore import restore_labels
from voxelocity_observe.core.quantities import count_text

_SLAB_VALUES = 1 << 16
_SMALL_INTEGERS = ("uint8", "int8", "uint16", "int16")
_FAR = 50.0
"""Standard deviations from the mean that are beyond any tissue; at most one of 2,500 values can be as far."""
_LEAST_LEFT = 0.25
"""Share of the standard deviation that must be left without far values: else they decide it. It stays above that of a
PET with a full bladder (0.46 for tracers of PSMA, by usual uptakes and volumes)."""


@dataclass(frozen=True)
class ScaleIntensity:
    """Stage: the image on a common scale, in the same memory order.

    "zscore": each channel minus its mean, divided by its standard deviation (summed in float64); a constant channel
    becomes 0. "window": clipped to [low, high], minus `mean`, divided by `std`, the same for every case and channel.

    Integers of one or two bytes stay unchanged, and the volume's `scaling` says what they mean, wherever that is exact:
    not for a window with an end that is not a whole number or beyond all of these integers, nor if zeros are left out.
    Everything else becomes a new float32 array.

    A warning names the voxels of a case that are so far from all others that they alone decide its deviation.
    """

    config: IntensityConfig

    def describe(self, spec: VolumeSpec) -> StageEffect:
        if self.config.mode == "none" or self._keeps(spec.dtype):
            return StageEffect(spec=spec, scratch_bytes=0)
        new = VolumeSpec(num_channels=spec.num_channels, grid=spec.grid, dtype="float32")
        return StageEffect(spec=new, scratch_bytes=32 * _SLAB_VALUES)

    def __call__(self, volume: Volume) -> Volume:
        assert not volume.scaling, "decoded scans hold intensities"
        if self.config.mode == "none":
            return volume
        if self._keeps(volume.image.dtype.name):
            return _scaled_in_words(volume, self.config)
        scaled = np.empty_like(volume.image, dtype=np.float32)
        for number, (source, target) in enumerate(zip(volume.image, scaled, strict=True)):
            if self.config.mode == "window":
                _scale_window(source, target, self.config)
            else:
                _scale_zscore(volume, number, target, nonzero_only=self.config.nonzero_only)
        return volume.with_(image=scaled)

    def _keeps(self, dtype: str) -> bool:
        if dtype not in _SMALL_INTEGERS:
            return False
        if self.config.mode != "window":
            return not self.config.nonzero_only
        low, high, limits = self.config.low, self.config.high, np.iinfo(dtype)
        return low.is_integer() and high.is_integer() and low <= limits.max and high >= limits.min


def _scaled_in_words(volume: Volume, config: IntensityConfig) -> Volume:
    """The volume with its integers kept and their meaning in `scaling`."""
    if config.mode == "zscore":
        found = [_mean_and_factor(volume, number, nonzero_only=False) for number in range(len(volume.image))]
        return volume.with_(scaling=tuple(Scaling(slope=factor, inter=-mean * factor) for mean, factor in found))
    limits = np.iinfo(volume.image.dtype)
    low, high = (min(max(int(end), limits.min), limits.max) for end in (config.low, config.high))
    image = volume.image
    if (low, high) != (limits.min, limits.max):
        image = np.empty_like(volume.image)
        np.clip(volume.image, low, high, out=image)
    mean, std = _mean_and_std(config)
    return volume.with_(image=image, scaling=(Scaling(slope=1.0 / std, inter=-mean / std),) * len(image))


def _mean_and_std(config: IntensityConfig) -> tuple[float, float]:
    mean = config.low if config.mean == "low" else config.mean
    std = config.high - config.low if config.std == "width" else config.std
    return mean, std


def _scale_window(source: Array, target: npt.NDArray[np.float32], config: IntensityConfig) -> None:
    mean, std = _mean_and_std(config)
    for values, scaled in slabs(source, target, max_values=_SLAB_VALUES):
        wide = values.astype(np.float64)
        np.clip(wide, config.low, config.high, out=wide)
        wide -= mean
        wide *= 1.0 / std
        scaled[...] = wide


def _scale_zscore(volume: Volume, number: int, target: npt.NDArray[np.float32], *, nonzero_only: bool) -> None:
    mean, factor = _mean_and_factor(volume, number, nonzero_only=nonzero_only)
    for values, scaled in slabs(volume.image[number], target, max_values=_SLAB_VALUES):
        # In float64, as float32 would keep few digits of large values that are close together.
        wide = values.astype(np.float64)
        wide -= mean
        wide *= factor
        scaled[...] = wide
        if nonzero_only:
            scaled[values == 0] = 0.0


def _mean_and_factor(volume: Volume, number: int, *, nonzero_only: bool) -> tuple[float, float]:
    """Mean of a channel, and one over its standard deviation; 0 for a constant."""
    found = _moments(volume.image[number], nonzero_only=nonzero_only)
    # The deviation of a constant that float64 cannot hold exactly is a rounding error.
    if not found.std > 1e-12 * abs(found.mean):
        return found.mean, 0.0
    if found.farthest > _FAR * found.std:
        _warn_of_far_values(volume, number, found, nonzero_only=nonzero_only)
    return found.mean, 1.0 / found.std


def _warn_of_far_values(volume: Volume, number: int, found: _Moments, *, nonzero_only: bool) -> None:
    """Warns if the standard deviation of a channel is that of a few values; called where some are far from its mean."""
    channel, reach = volume.image[number], _FAR / 2 * found.std
    near = _moments(channel, nonzero_only=nonzero_only, within=(found.mean - reach, found.mean + reach))
    # All others may be one value, as in a map of a few points: then nothing is lost.
    if near.std == 0.0 or near.std > _LEAST_LEFT * found.std:
        return
    low, high = channel.min(), channel.max()
    value = high if high - found.mean > found.mean - low else low
    x, y, z = np.argwhere(restore_labels(channel == value, volume.trace))[0].tolist()
    of_channel = f", channel {number}" if len(volume.image) > 1 else ""
    warnings.warn(
        f"prepare.intensity: case '{volume.case_id}': its normalization follows "
        f"{count_text(found.count - near.count, 'voxel')} far from all others, such as {value:g} at (x, y, z) = "
        f"({x}, {y}, {z}){of_channel}: the standard deviation is {found.std:.4g} in place of {near.std:.4g}, so that "
        "all others become nearly equal; correct these values in the file, for example with numpy.clip, or leave the "
        "case out",
        stacklevel=2,
    )


@dataclass(frozen=True)
class _Moments:
    """Of the values of a channel: their number, mean and standard deviation, and how far one of them is from the mean
    of its slab at most."""

    count: int
    mean: float
    std: float
    farthest: float


def _moments(source: Array, *, nonzero_only: bool, within: tuple[float, float] | None = None) -> _Moments:
    """The moments in one pass, slab by slab; `within`: only of values between these.

    Slabs are joined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979: the sum of squares about the mean keeps its digits when the mean is large.
    """
    count, mean, squares, farthest = 0, 0.0, 0.0, 0.0
    for (values,) in slabs(source, max_values=_SLAB_VALUES):
        flat = values.ravel(order="K")
        flat = flat[flat != 0] if nonzero_only else flat
        wide = (flat if within is None else flat[(flat >= within[0]) & (flat <= within[1])]).astype(np.float64)
        if wide.size == 0:
            continue
        slab_mean = float(wide.mean())
        wide -= slab_mean
        joined = count + wide.size
        # Not by a dot product: BLAS splits it among threads, which is slower here (700 ms instead of 80 for 31 million
        # voxels) and adds in an order that depends on the machine.
        np.square(wide, out=wide)
        farthest = max(farthest, float(wide.max()))
        squares += float(wide.sum()) + (slab_mean - mean) ** 2 * count * wide.size / joined
        mean += (slab_mean - mean) * wide.size / joined
        count = joined
    return _Moments(count, mean, math.sqrt(squares / count) if count else 0.0, math.sqrt(farthest))
