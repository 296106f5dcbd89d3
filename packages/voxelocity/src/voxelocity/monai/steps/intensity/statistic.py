"""Changes of intensities that depend on a patch's values.

Given a patch's statistics, or its percentiles (c, 2), `settle` returns the steps that each becomes on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.monai.steps.intensity.field import Field, Rician
from voxelocity.monai.steps.intensity.pointwise import Clip, Curve, Floats, Linear, Pointwise, Power

Facts = npt.NDArray[np.float64]
_MAX_FLOAT32_RANKS = 1_000_000
"""Up to this many voxels a rank is computed in float32, as in `torch.quantile`; beyond, in float64, as in NumPy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """Statistics of each channel, or of its voxels that are not 0: (c,) float64 each.

    Attributes:
        num_voxels: how many were measured.
        low: smallest; NaN if there are none.
        high: largest.
        mean: in float64.
        variance: mean squared distance from the mean.
    """

    num_voxels: Facts
    low: Facts
    high: Facts
    mean: Facts
    variance: Facts

    def pooled(self) -> Statistics:
        """Those of all channels together, repeated for each channel."""
        total = self.num_voxels.sum()
        some = self.num_voxels > 0
        if not some.any():
            return self
        share = self.num_voxels[some] / total
        # From the first on, so that equal channels have no deviation: dividing by one of 1e-16 would not be harmless.
        first = self.mean[some][0]
        with np.errstate(invalid="ignore"):
            mean = first + (share * (self.mean[some] - first)).sum()
            variance = (share * (self.variance[some] + (self.mean[some] - mean) ** 2)).sum()
        values = {"num_voxels": total, "mean": mean, "variance": variance}
        values |= {"low": self.low[some].min(), "high": self.high[some].max()}
        return Statistics(**{name: np.full(self.low.shape, value) for name, value in values.items()})

    @property
    def std(self) -> Facts:
        """With the number of voxels as divisor."""
        deviation: Facts = np.sqrt(self.variance)
        return deviation

    @property
    def sample_std(self) -> Facts:
        """With one less as divisor: NaN for a single voxel."""
        with np.errstate(invalid="ignore", divide="ignore"):
            deviation: Facts = np.sqrt(self.variance * self.num_voxels / (self.num_voxels - 1))
        return deviation


@dataclass(frozen=True, kw_only=True, eq=False)
class StdShift:
    """Adds `factor` standard deviations of the patch, or of each channel; optionally only of voxels that are not 0."""

    factor: float
    per_channel: bool
    nonzero: bool

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics if self.per_channel else statistics.pooled()
        shift = np.where(found.num_voxels > 0, self.factor * found.std, 0.0)
        return [_linear(scale=np.ones_like(shift), shift=shift, keeps_zero=self.nonzero)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardize:
    """Minus the mean, over the standard deviation, of the patch or each channel; optionally only of nonzero voxels.

    Attributes:
        subtract: (c,), instead of the mean.
        divide: (c,), instead of the standard deviation.
        per_channel: whether each channel has its own.
        nonzero: whether voxels of 0 are neither counted nor changed.
    """

    subtract: Floats | None
    divide: Floats | None
    per_channel: bool
    nonzero: bool

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics if self.per_channel else statistics.pooled()
        center = found.mean if self.subtract is None else self.subtract.astype(np.float64)
        divisor = found.std if self.divide is None else self.divide.astype(np.float64)
        is_some = found.num_voxels > 0
        center, divisor = np.where(is_some, center, 0.0), np.where(is_some & (divisor != 0.0), divisor, 1.0)
        return [_linear(center=center, scale=1.0 / divisor, shift=np.zeros_like(center), keeps_zero=self.nonzero)]


@dataclass(frozen=True, kw_only=True, eq=False)
class RescaleRange:
    """Maps the range of the patch, or of each channel, to `low` to `high`; to 0 and 1 if one is None.

    A range of a single value becomes that value times `low`, if `low` is given.
    """

    low: float | None
    high: float | None
    per_channel: bool
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics if self.per_channel else statistics.pooled()
        span = found.high - found.low
        is_flat = span == 0.0
        width, start = (1.0, 0.0) if self.low is None or self.high is None else (self.high - self.low, self.low)
        return [
            _linear(
                center=np.where(is_flat, 0.0, found.low),
                scale=np.where(is_flat, 1.0 if self.low is None else self.low, width / np.where(is_flat, 1.0, span)),
                shift=np.where(is_flat, 0.0, start),
            )
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaleAboutMean:
    """Scales by `factor` (c,) about the mean of the patch or each channel, or about 0; may clip to the old range."""

    factor: Floats
    keeps_mean: bool
    keeps_range: bool
    per_channel: bool
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics if self.per_channel else statistics.pooled()
        center = found.mean if self.keeps_mean else np.zeros_like(found.mean)
        steps: list[Pointwise] = [_linear(center=center, scale=self.factor, shift=center)]
        if self.keeps_range:
            steps.append(Clip(low=_floats(found.low), high=_floats(found.high)))
        return steps


@dataclass(frozen=True, kw_only=True, eq=False)
class Contrast:
    """Gamma within the range of the patch: from its lower end, or of the negative; mean and deviation as before.

    Attributes:
        gamma: exponent.
        is_inverted: whether the negative of the patch is changed.
        keeps_moments: whether mean and standard deviation are restored.
    """

    gamma: float
    is_inverted: bool
    keeps_moments: bool
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Pointwise | Rematch]:
        found = statistics.pooled()
        low, high, mean = found.low[0], found.high[0], found.mean[0]
        flips: list[Pointwise | Rematch] = []
        if self.is_inverted:
            low, high, mean = -high, -low, -mean
            flips = [_linear(scale=np.full_like(found.low, -1.0), shift=np.zeros_like(found.low))]
        span = float(np.float32(high) - np.float32(low))
        # A number this small only matters for a patch of a single value.
        divisor = float(np.float32(span) + np.float32(1e-7))
        power = Power(low=float(low), divisor=divisor, gamma=self.gamma, span=span)
        again = [Rematch(mean=float(mean), std=float(found.sample_std[0]))] if self.keeps_moments else []
        return [*flips, power, *again, *flips]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rematch:
    """Shifts and scales to this mean and (sample) standard deviation over all channels."""

    mean: float
    std: float
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics.pooled()
        scale = self.std / (found.sample_std + 1e-8)
        return [_linear(center=found.mean, scale=scale, shift=np.full_like(scale, self.mean))]


@dataclass(frozen=True, kw_only=True, eq=False)
class HistogramShift:
    """Maps the range of the patch onto itself by the line through `points` (n,), shares of it at equal distances.

    A patch of a single value stays unchanged.
    """

    points: Facts
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Pointwise]:
        found = statistics.pooled()
        low, high = float(found.low[0]), float(found.high[0])
        if low == high:
            return []
        return [Curve(low=low, high=high, values=_floats(self.points * (high - low) + low))]


@dataclass(frozen=True, kw_only=True, eq=False)
class RelativeRician:
    """`Rician` whose `std` counts (sample) standard deviations of the patch, or of each channel."""

    rician: Rician
    per_channel: bool
    nonzero: bool = False

    def settle(self, statistics: Statistics) -> Sequence[Rician]:
        found = statistics if self.per_channel else statistics.pooled()
        return [replace(self.rician, std=_floats(self.rician.std * found.sample_std))]


@dataclass(frozen=True, kw_only=True, eq=False)
class PercentileRange:
    """Maps the range between two percentiles of the patch, or of each channel, to `low` to `high`.

    Attributes:
        lower: percentile, 0 to 100.
        upper: percentile.
        low: new value of the lower percentile; if either is None, they become 0 and 1.
        high: new value of the upper one.
        clips: whether to clip to those of the two that are given, unless the percentiles are the same.
        per_channel: whether each channel has its own.
    """

    lower: float
    upper: float
    low: float | None
    high: float | None
    clips: bool
    per_channel: bool

    def settle(self, ends: Facts) -> Sequence[Pointwise]:
        start, stop = ends.T
        is_flat = start == stop
        width, shift = (1.0, 0.0) if self.low is None or self.high is None else (self.high - self.low, self.low)
        scale = np.where(is_flat, 1.0, width / np.where(is_flat, 1.0, stop - start))
        shifts = np.where(is_flat, 0.0 if self.low is None else self.low, shift)
        steps: list[Pointwise] = [_linear(center=start, scale=scale, shift=shifts)]
        if self.clips:
            low, high = (
                np.where(is_flat, sign * np.inf, sign * np.inf if bound is None else bound)
                for sign, bound in ((-1.0, self.low), (1.0, self.high))
            )
            steps.append(Clip(low=_floats(low), high=_floats(high)))
        return steps


Statistic = (
    StdShift | Standardize | RescaleRange | ScaleAboutMean | Contrast | Rematch | HistogramShift | RelativeRician
)
IntensityStep = Pointwise | Statistic | PercentileRange | Field
"""A change of an array (c, x, y, z) float32: by each voxel alone, by all of them, or by positions and neighbors."""


def percentiles(patch: torch.Tensor, shares: Sequence[float], *, per_channel: bool) -> Facts:
    """(c, shares) of each channel of `patch` (c, x, y, z), or of all channels together, repeated for each channel.

    Shares are percentiles, 0 to 100, interpolated between two voxels' values.
    """
    rows = (patch.flatten(1) if per_channel else patch.reshape(1, -1)).cpu().numpy()
    found = np.array([_of_row(row, shares) for row in rows], np.float64)
    return np.broadcast_to(found, (len(patch), len(shares)))


def ranks_of(num_voxels: int, shares: Sequence[float]) -> list[float]:
    """The positions of percentiles among this many ordered voxels, counted from 0, between two of them."""
    last = num_voxels - 1
    is_small = num_voxels <= _MAX_FLOAT32_RANKS
    return [
        float(np.float32(share / 100.0) * np.float32(last)) if is_small else share / 100.0 * last for share in shares
    ]


def _of_row(row: np.ndarray[tuple[int], np.dtype[np.float32]], shares: Sequence[float]) -> list[float]:
    last, ranks = row.size - 1, ranks_of(row.size, shares)
    belows = [min(int(rank), last) for rank in ranks]
    if np.isnan(row).any():
        return [np.nan for _ in ranks]
    wanted = sorted({place for below in belows for place in (below, min(below + 1, last))})
    ordered = np.partition(row, wanted)
    return [
        float(ordered[below] + (rank - below) * (ordered[min(below + 1, last)] - ordered[below]))
        for rank, below in zip(ranks, belows, strict=True)
    ]


def _linear(
    *, scale: npt.NDArray[np.floating], shift: Facts, center: Facts | None = None, keeps_zero: bool = False
) -> Linear:
    return Linear(
        scale=_floats(scale),
        shift=_floats(shift),
        center=None if center is None else _floats(center),
        keeps_zero=keeps_zero,
    )


def _floats(values: npt.NDArray[np.floating]) -> Floats:
    # A subnormal divisor gives a factor beyond float32: infinity, so that a voxel exactly at the center becomes NaN.
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)
