"""What intensity steps measure of a patch on a device, and what they become there: tensors, which nobody waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from voxelocity.monai.steps.engine import send
from voxelocity.monai.steps.intensity.statistic import (
    Contrast,
    PercentileRange,
    RescaleRange,
    ScaleAboutMean,
    Standardize,
    StdShift,
    ranks_of,
)

Change = Callable[[torch.Tensor], None]
"""Changes a patch (c, x, y, z) float32 in place."""


class DeviceFacts:
    """As `statistic.Statistics`, each (c,) float64 on the patch's device, measured when it is asked for.

    Args:
        patch: (c, x, y, z) float32.
        per_channel: whether each channel has its own, or all have those of all together.
        nonzero: whether voxels of 0 are left out.
    """

    def __init__(self, patch: torch.Tensor, *, per_channel: bool, nonzero: bool) -> None:
        self._rows = patch.flatten(1) if per_channel else patch.reshape(1, -1)
        self._counts = self._rows != 0 if nonzero else None
        self._num_channels = len(patch)

    @functools.cached_property
    def num_voxels(self) -> torch.Tensor:
        """How many were measured."""
        if self._counts is None:
            return torch.full((self._num_channels,), float(self._rows.shape[1]), device=self._rows.device).double()
        return self._each(self._counts.sum(1, dtype=torch.float64))

    @functools.cached_property
    def is_some(self) -> torch.Tensor:
        """Whether there are any."""
        return self.num_voxels > 0

    @functools.cached_property
    def low(self) -> torch.Tensor:
        """The smallest."""
        return self._end(float("inf"))

    @functools.cached_property
    def high(self) -> torch.Tensor:
        """The largest."""
        return self._end(-float("inf"))

    @functools.cached_property
    def mean(self) -> torch.Tensor:
        """In float64."""
        return self._each(self._rows.sum(1, dtype=torch.float64)) / self.num_voxels

    @functools.cached_property
    def _squares(self) -> torch.Tensor:
        far = self._rows.double() - self.mean[: len(self._rows), None]
        if self._counts is not None:
            far.masked_fill_(~self._counts, 0.0)
        return self._each(far.square_().sum(1))

    @functools.cached_property
    def std(self) -> torch.Tensor:
        """With the number of voxels as divisor."""
        return (self._squares / self.num_voxels).sqrt()

    @functools.cached_property
    def sample_std(self) -> torch.Tensor:
        """With one less as divisor: NaN for a single voxel."""
        return (self._squares / (self.num_voxels - 1)).sqrt()

    def _end(self, nothing: float) -> torch.Tensor:
        rows = self._rows if self._counts is None else self._rows.masked_fill(~self._counts, nothing)
        end = rows.amin(1) if nothing > 0 else rows.amax(1)
        return torch.where(self.is_some, self._each(end.double()), float("nan"))

    def _each(self, values: torch.Tensor) -> torch.Tensor:
        return values.expand(self._num_channels)


@dataclass(frozen=True, kw_only=True)
class DeviceLinear:
    """`(v - center) * scale + shift`, each (c,) or a number; `keeps_zero` as of `Linear`."""

    scale: torch.Tensor | float = 1.0
    shift: torch.Tensor | float = 0.0
    center: torch.Tensor | float | None = None
    keeps_zero: bool = False

    def __call__(self, patch: torch.Tensor) -> None:
        changed = patch.clone() if self.keeps_zero else patch
        if self.center is not None:
            changed.sub_(_value(self.center))
        changed.mul_(_value(self.scale)).add_(_value(self.shift))
        if self.keeps_zero:
            patch.copy_(torch.where(patch == 0, patch, changed))


def as_column(values: torch.Tensor) -> torch.Tensor:
    """A value for each channel as float32 that broadcasts over a patch."""
    return values.float().view(-1, 1, 1, 1)


def _value(value: torch.Tensor | float) -> torch.Tensor | float:
    return as_column(value) if isinstance(value, torch.Tensor) else value


def shift_by_std(patch: torch.Tensor, step: StdShift) -> None:
    """`StdShift`."""
    found = DeviceFacts(patch, per_channel=step.per_channel, nonzero=step.nonzero)
    shift = torch.where(found.is_some, step.factor * found.std, 0.0)
    DeviceLinear(shift=shift, keeps_zero=step.nonzero)(patch)


def standardize(patch: torch.Tensor, step: Standardize) -> None:
    """`Standardize`."""
    found = DeviceFacts(patch, per_channel=step.per_channel, nonzero=step.nonzero)
    center = found.mean if step.subtract is None else send(step.subtract, patch.device).double()
    divisor = found.std if step.divide is None else send(step.divide, patch.device).double()
    center = torch.where(found.is_some, center, 0.0)
    divisor = torch.where(found.is_some & (divisor != 0.0), divisor, 1.0)
    DeviceLinear(center=center, scale=1.0 / divisor, keeps_zero=step.nonzero)(patch)


def rescale(patch: torch.Tensor, step: RescaleRange) -> None:
    """`RescaleRange`."""
    found = DeviceFacts(patch, per_channel=step.per_channel, nonzero=step.nonzero)
    span = found.high - found.low
    is_flat = span == 0.0
    has_ends = step.low is not None and step.high is not None
    start = float(step.low or 0.0) if has_ends else 0.0
    width = float(step.high or 0.0) - start if has_ends else 1.0
    flat = 1.0 if step.low is None else float(step.low)
    DeviceLinear(
        center=torch.where(is_flat, 0.0, found.low),
        scale=torch.where(is_flat, flat, width / torch.where(is_flat, 1.0, span)),
        shift=torch.where(is_flat, 0.0, torch.full_like(span, start)),
    )(patch)


def scale_about_mean(patch: torch.Tensor, step: ScaleAboutMean) -> None:
    """`ScaleAboutMean`."""
    found = DeviceFacts(patch, per_channel=step.per_channel, nonzero=step.nonzero)
    low, high = (as_column(found.low), as_column(found.high)) if step.keeps_range else (None, None)
    center = found.mean if step.keeps_mean else torch.zeros_like(found.num_voxels)
    DeviceLinear(center=center, scale=send(step.factor, patch.device), shift=center)(patch)
    if step.keeps_range:
        patch.clamp_(low, high)


def change_contrast(patch: torch.Tensor, step: Contrast) -> None:
    """`Contrast`, with mean and deviation restored where that was asked for."""
    if step.is_inverted:
        patch.neg_()
    found = DeviceFacts(patch, per_channel=False, nonzero=False)
    low, high = found.low[0].float(), found.high[0].float()
    span = high - low
    mean, std = (found.mean, found.sample_std) if step.keeps_moments else (None, None)
    patch.sub_(low).div_(span + 1e-7).clamp_(min=0.0).pow_(step.gamma).mul_(span).add_(low)
    if step.keeps_moments:
        assert mean is not None, "it is measured before"
        assert std is not None, "it is measured before"
        again = DeviceFacts(patch, per_channel=False, nonzero=False)
        DeviceLinear(center=again.mean, scale=std / (again.sample_std + 1e-8), shift=mean)(patch)
    if step.is_inverted:
        patch.neg_()


def map_along(patch: torch.Tensor, points: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """`HistogramShift`."""
    found = DeviceFacts(patch, per_channel=False, nonzero=False)
    low, high = found.low[0], found.high[0]
    values = (send(points, patch.device) * (high - low) + low).float()
    last = len(points) - 1
    place = ((patch - low.float()) * (last / (high - low)).float()).clamp_(0, last).nan_to_num_(0.0)
    below = place.long().clamp_(0, last - 1)
    patch.copy_(torch.where(low == high, patch, torch.lerp(values[below], values[below + 1], place - below)))


def within_percentiles(patch: torch.Tensor, step: PercentileRange) -> None:
    """`PercentileRange`, by sorting."""
    rows = patch.flatten(1) if step.per_channel else patch.reshape(1, -1)
    ordered = rows.sort(1).values
    last = rows.shape[1] - 1
    has_nan = ordered[:, -1].isnan()
    ends = []
    for rank in ranks_of(rows.shape[1], (step.lower, step.upper)):
        below = min(int(rank), last)
        first = ordered[:, below]
        end = first + (rank - below) * (ordered[:, min(below + 1, last)] - first)
        ends.append(torch.where(has_nan, float("nan"), end).double().expand(len(patch)))
    start, stop = ends
    is_flat = start == stop
    has_ends = step.low is not None and step.high is not None
    shift = float(step.low or 0.0) if has_ends else 0.0
    width = float(step.high or 0.0) - shift if has_ends else 1.0
    scale = torch.where(is_flat, 1.0, width / torch.where(is_flat, 1.0, stop - start))
    shifts = torch.where(is_flat, 0.0 if step.low is None else float(step.low), torch.full_like(start, shift))
    DeviceLinear(center=start, scale=scale, shift=shifts)(patch)
    if step.clips:
        low, high = (
            as_column(torch.where(is_flat, sign * np.inf, sign * np.inf if bound is None else float(bound)).to(start))
            for sign, bound in ((-1.0, step.low), (1.0, step.high))
        )
        patch.clamp_(low, high)
