"""MONAI's transforms that scale, shift and bend intensities, or bring them to a range.

For a patch of a single value neither `RandHistogramShift` nor `ScaleIntensityRangePercentiles` warns; MONAI's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from monai import transforms as mt

from voxelocity.monai.lower.intensity.float32 import (
    FLOAT32,
    REAL,
    Steps,
    as_monai,
    changes,
    linear,
    per_channel,
    why_not_float32,
)
from voxelocity.monai.lower.lowering import adds_steps, blindly, seeing
from voxelocity.monai.lower.pending import PendingTensor
from voxelocity.monai.steps.intensity.pointwise import Clip, Threshold
from voxelocity.monai.steps.intensity.statistic import (
    Contrast,
    HistogramShift,
    PercentileRange,
    RescaleRange,
    ScaleAboutMean,
    Standardize,
    StdShift,
)

_FLOATS = FLOAT32 | {torch.float64}
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16})


@changes(mt.RandScaleIntensity, "scaler", dtypes=REAL, draw=seeing, casts=True)
def _scale(transform: Any, pending: PendingTensor) -> Steps:
    return linear(pending, scale=1.0 + per_channel(transform.factor, pending.shape[0]))


def _factors(transform: Any, item: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Each key of a (random) shift, and the factor that the metadata give for it, or None."""
    for key, name, meta_key, postfix in transform.key_iterator(
        item, transform.factor_key, transform.meta_keys, transform.meta_key_postfix
    ):
        meta = meta_key or f"{key}_{postfix}"
        yield key, item[meta].get(name) if meta in item else None


@adds_steps(mt.RandShiftIntensity, "shifter", draw=seeing, values_of=_factors)
def _rand_shift(transform: Any, pending: PendingTensor, params: None, factor: Any = None) -> PendingTensor:
    if pending.dtype != torch.float32:
        return as_monai(transform, pending, factor=factor)
    offsets = per_channel(transform._offset, pending.shape[0]).astype(np.float64)
    pending.add(linear(pending, shift=offsets if factor is None else offsets * float(factor)))
    return pending


@adds_steps(mt.ShiftIntensity, "shifter", values_of=_factors)
def _shift(transform: Any, pending: PendingTensor, params: Any, factor: Any = None) -> PendingTensor:
    offset = transform.offset if factor is None else transform.offset * factor
    if pending.dtype != torch.float32:
        return as_monai(transform, pending, offset=offset)
    pending.add(linear(pending, shift=float(offset)))
    return pending


@changes(mt.StdShiftIntensity, "shifter", dtypes=REAL)
@changes(mt.RandStdShiftIntensity, "shifter", dtypes=REAL, draw=blindly, casts=True)
def _shift_by_std(transform: Any, pending: PendingTensor) -> Steps:
    return StdShift(factor=float(transform.factor), per_channel=transform.channel_wise, nonzero=transform.nonzero)


@changes(mt.ScaleIntensityFixedMean, dtypes=_FLOATS)
@changes(mt.RandScaleIntensityFixedMean, "scaler", dtypes=_FLOATS, draw=seeing, casts=True)
def _scale_about_mean(transform: Any, pending: PendingTensor) -> Steps:
    return ScaleAboutMean(
        factor=1.0 + per_channel(transform.factor, pending.shape[0]),
        keeps_mean=transform.fixed_mean,
        keeps_range=transform.preserve_range,
        per_channel=transform.channel_wise,
    )


@changes(mt.RandAdjustContrast, "adjuster", draw=blindly)
@changes(mt.AdjustContrast, "adjuster")
def _bend(transform: Any, pending: PendingTensor) -> Steps:
    is_random = isinstance(transform, mt.RandAdjustContrast)
    bend, gamma = (transform.adjust_contrast, transform.gamma_value) if is_random else (transform, transform.gamma)
    return Contrast(gamma=float(gamma), is_inverted=bend.invert_image, keeps_moments=bend.retain_stats)


@changes(mt.RandHistogramShift, "shifter", draw=blindly)
def _shift_histogram(transform: Any, pending: PendingTensor) -> Steps:
    return HistogramShift(points=np.array(transform.floating_control_points, np.float64))


@changes(mt.ScaleIntensity, "scaler", dtypes=REAL)
def _stretch(transform: Any, pending: PendingTensor) -> Steps:
    if transform.minv is not None or transform.maxv is not None:
        return RescaleRange(low=transform.minv, high=transform.maxv, per_channel=transform.channel_wise)
    return linear(pending, scale=1.0 + (0.0 if transform.factor is None else float(transform.factor)))


@changes(mt.ScaleIntensityRange, "scaler", dtypes=FLOAT32 | _WHOLE)
def _to_range(transform: Any, pending: PendingTensor) -> Steps:
    low, high = transform.b_min, transform.b_max
    # From whole numbers torch subtracts a whole `a_min` within their dtype, where the result may not fit.
    may_not_fit = pending.dtype in _WHOLE and not isinstance(transform.a_min, float)
    span = transform.a_max - transform.a_min
    has_no_bound = transform.clip and low is None and high is None
    if span == 0 or has_no_bound or may_not_fit:
        return None
    width, shift = (1.0, 0.0) if low is None or high is None else (high - low, low)
    step = linear(pending, center=transform.a_min, scale=width / span, shift=shift)
    if not transform.clip:
        return step
    bounds = (-np.inf if low is None else low, np.inf if high is None else high)
    low, high = (per_channel(bound, pending.shape[0]) for bound in bounds)
    return step, Clip(low=low, high=high)


@changes(mt.ScaleIntensityRangePercentiles, "scaler")
def _to_percentile_range(transform: Any, pending: PendingTensor) -> Steps:
    low, high = transform.b_min, transform.b_max
    lacks_one, lacks_both = low is None or high is None, low is None and high is None
    if (transform.clip and lacks_both) or (transform.relative and lacks_one):
        return None
    if transform.relative:
        low, high = (low + (high - low) * share / 100.0 for share in (transform.lower, transform.upper))
    return PercentileRange(
        lower=transform.lower,
        upper=transform.upper,
        low=low,
        high=high,
        clips=transform.clip,
        per_channel=transform.channel_wise,
    )


def _why_not_standardize(transform: Any, inner: Any) -> str:
    for name in ("subtrahend", "divisor"):
        values = getattr(inner, name)
        if values is not None and np.ndim(values) != int(inner.channel_wise):
            wanted = "a number for each channel" if inner.channel_wise else "a number"
            return f"its {name} is an array of {np.ndim(values)} axes, and only {wanted} is lowered"
    return why_not_float32(transform, inner)


@changes(mt.NormalizeIntensity, "normalizer", dtypes=REAL, why_not=_why_not_standardize)
def _standardize(transform: Any, pending: PendingTensor) -> Steps:
    num_channels = pending.shape[0]
    given = (transform.subtrahend, transform.divisor)
    if any(np.ndim(values) == 1 and len(values) != num_channels for values in given):
        return None
    subtract, divide = (None if values is None else per_channel(values, num_channels) for values in given)
    if subtract is None or divide is None:
        is_each = transform.channel_wise
        return Standardize(subtract=subtract, divide=divide, per_channel=is_each, nonzero=transform.nonzero)
    with np.errstate(over="ignore"):
        scale = (1.0 / np.where(divide == 0.0, 1.0, divide.astype(np.float64))).astype(np.float32)
    if not np.isfinite(scale).all():
        # A number so small that its inverse is not a float32: only a division gives what MONAI gives.
        return None
    return linear(pending, center=subtract, scale=scale, keeps_zero=transform.nonzero)


@changes(mt.ThresholdIntensity, "filter")
def _threshold(transform: Any, pending: PendingTensor) -> Steps:
    return Threshold(bound=float(transform.threshold), keeps_above=bool(transform.above), fill=float(transform.cval))
