"""MONAI's transforms that scale, shift and bend intensities, or bring them to a range.

For a patch of a single value neither `RandHistogramShift` nor `ScaleIntensityRangePercentiles` warns; MONAI's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from monai.transforms.intensity import array, dictionary

from voxelocity.monai.lower.intensity.float32 import (
    add_linear,
    as_monai,
    cast_idle,
    gives_float32,
    per_channel,
    why_not_float32,
)
from voxelocity.monai.lower.lowering import adds_steps, blindly, lowers, seeing
from voxelocity.monai.lower.pending import PendingTensor, to_pending
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

_FLOAT32 = frozenset({torch.float32})
_FLOATS = _FLOAT32 | {torch.float64}
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16})


@adds_steps(
    array.RandScaleIntensity,
    dictionary.RandScaleIntensityd,
    "scaler",
    draw=seeing,
    idle=cast_idle,
    why_not=why_not_float32,
)
def _scale(transform: Any, pending: PendingTensor, params: None) -> PendingTensor:
    if not gives_float32(transform, pending):
        return as_monai(transform, pending)
    return add_linear(pending, scale=1.0 + per_channel(transform.factor, pending.shape[0]))


@adds_steps(array.RandShiftIntensity, draw=seeing)
def _rand_shift(transform: Any, pending: PendingTensor, params: None, factor: Any = None) -> PendingTensor:
    if pending.dtype != torch.float32:
        return as_monai(transform, pending, factor=factor)
    offsets = per_channel(transform._offset, pending.shape[0]).astype(np.float64)
    return add_linear(pending, shift=offsets if factor is None else offsets * float(factor))


@adds_steps(array.ShiftIntensity)
def _shift(transform: Any, pending: PendingTensor, params: Any, factor: Any = None) -> PendingTensor:
    offset = transform.offset if factor is None else transform.offset * factor
    if pending.dtype != torch.float32:
        return as_monai(transform, pending, offset=offset)
    return add_linear(pending, shift=float(offset))


@lowers(dictionary.RandShiftIntensityd)
def _rand_shift_d(transform: Any, data: Any) -> Any:
    changed = dict(data)
    transform.randomize(None)
    keys = list(transform.key_iterator(changed))
    if not transform._do_transform or not keys:
        return changed | {key: to_pending(changed[key]) for key in keys}
    transform.shifter.randomize(to_pending(changed[keys[0]]))
    for key, factor in _factors(transform, changed):
        changed[key] = _rand_shift(transform.shifter, to_pending(changed[key]), None, factor)
    return changed


@lowers(dictionary.ShiftIntensityd)
def _shift_d(transform: Any, data: Any) -> Any:
    changed = dict(data)
    for key, factor in _factors(transform, changed):
        changed[key] = _shift(transform.shifter, to_pending(changed[key]), None, factor)
    return changed


def _factors(transform: Any, data: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Each key of a (random) shift, and the factor that the metadata give for it, or None."""
    for key, name, meta_key, postfix in transform.key_iterator(
        data, transform.factor_key, transform.meta_keys, transform.meta_key_postfix
    ):
        place = meta_key or f"{key}_{postfix}"
        yield key, data[place].get(name) if place in data else None


@adds_steps(array.StdShiftIntensity, dictionary.StdShiftIntensityd, "shifter", why_not=why_not_float32)
@adds_steps(
    array.RandStdShiftIntensity,
    dictionary.RandStdShiftIntensityd,
    "shifter",
    draw=blindly,
    idle=cast_idle,
    why_not=why_not_float32,
)
def _shift_by_std(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    if not gives_float32(transform, pending):
        return as_monai(transform, pending)
    pending.add(StdShift(factor=float(transform.factor), per_channel=transform.channel_wise, nonzero=transform.nonzero))
    return pending


@adds_steps(array.ScaleIntensityFixedMean, why_not=why_not_float32)
@adds_steps(
    array.RandScaleIntensityFixedMean,
    dictionary.RandScaleIntensityFixedMeand,
    "scaler",
    draw=seeing,
    idle=cast_idle,
    why_not=why_not_float32,
)
def _scale_about_mean(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    if not gives_float32(transform, pending, _FLOATS):
        return as_monai(transform, pending)
    pending.add(
        ScaleAboutMean(
            factor=1.0 + per_channel(transform.factor, pending.shape[0]),
            keeps_mean=transform.fixed_mean,
            keeps_range=transform.preserve_range,
            per_channel=transform.channel_wise,
        )
    )
    return pending


@adds_steps(array.RandAdjustContrast, dictionary.RandAdjustContrastd, "adjuster", draw=blindly)
def _rand_contrast(transform: Any, pending: PendingTensor, params: None) -> PendingTensor:
    return _bend(transform.adjust_contrast, transform.gamma_value, pending)


@adds_steps(array.AdjustContrast, dictionary.AdjustContrastd, "adjuster")
def _contrast(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    return _bend(transform, transform.gamma, pending)


def _bend(transform: Any, gamma: float, pending: PendingTensor) -> PendingTensor:
    if pending.dtype != torch.float32:
        return as_monai(transform, pending, gamma=gamma)
    is_inverted, keeps_moments = transform.invert_image, transform.retain_stats
    pending.add(Contrast(gamma=float(gamma), is_inverted=is_inverted, keeps_moments=keeps_moments))
    return pending


@adds_steps(array.RandHistogramShift, dictionary.RandHistogramShiftd, "shifter", draw=blindly)
def _shift_histogram(transform: Any, pending: PendingTensor, params: None) -> PendingTensor:
    if pending.dtype != torch.float32:
        return as_monai(transform, pending)
    pending.add(HistogramShift(points=np.array(transform.floating_control_points, np.float64)))
    return pending


@adds_steps(array.ScaleIntensity, dictionary.ScaleIntensityd, "scaler", why_not=why_not_float32)
def _stretch(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    if not gives_float32(transform, pending):
        return as_monai(transform, pending)
    if transform.minv is not None or transform.maxv is not None:
        pending.add(RescaleRange(low=transform.minv, high=transform.maxv, per_channel=transform.channel_wise))
        return pending
    return add_linear(pending, scale=1.0 + (0.0 if transform.factor is None else float(transform.factor)))


@adds_steps(array.ScaleIntensityRange, dictionary.ScaleIntensityRanged, "scaler", why_not=why_not_float32)
def _to_range(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    low, high = transform.b_min, transform.b_max
    # From whole numbers torch subtracts a whole `a_min` within their dtype, where the result may not fit.
    sources = _FLOAT32 | _WHOLE if isinstance(transform.a_min, float) else _FLOAT32
    span = transform.a_max - transform.a_min
    has_no_bound = transform.clip and low is None and high is None
    if span == 0 or has_no_bound or not gives_float32(transform, pending, sources):
        return as_monai(transform, pending)
    width, shift = (1.0, 0.0) if low is None or high is None else (high - low, low)
    add_linear(pending, center=transform.a_min, scale=width / span, shift=shift)
    if transform.clip:
        bounds = (-np.inf if low is None else low, np.inf if high is None else high)
        low, high = (per_channel(bound, pending.shape[0]) for bound in bounds)
        pending.add(Clip(low=low, high=high))
    return pending


@adds_steps(
    array.ScaleIntensityRangePercentiles, dictionary.ScaleIntensityRangePercentilesd, "scaler", why_not=why_not_float32
)
def _to_percentile_range(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    low, high = transform.b_min, transform.b_max
    lacks_one, lacks_both = low is None or high is None, low is None and high is None
    has_no_bound = (transform.clip and lacks_both) or (transform.relative and lacks_one)
    if has_no_bound or not gives_float32(transform, pending, _FLOAT32):
        return as_monai(transform, pending)
    if transform.relative:
        low, high = (low + (high - low) * share / 100.0 for share in (transform.lower, transform.upper))
    pending.add(
        PercentileRange(
            lower=transform.lower,
            upper=transform.upper,
            low=low,
            high=high,
            clips=transform.clip,
            per_channel=transform.channel_wise,
        )
    )
    return pending


def _why_not_standardize(transform: Any, inner: Any) -> str:
    for name in ("subtrahend", "divisor"):
        values = getattr(inner, name)
        if values is not None and np.ndim(values) != int(inner.channel_wise):
            wanted = "a number for each channel" if inner.channel_wise else "a number"
            return f"its {name} is an array of {np.ndim(values)} axes, and only {wanted} is lowered"
    return why_not_float32(transform, inner)


@adds_steps(array.NormalizeIntensity, dictionary.NormalizeIntensityd, "normalizer", why_not=_why_not_standardize)
def _standardize(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    num_channels = pending.shape[0]
    given = (transform.subtrahend, transform.divisor)
    has_wrong_length = any(np.ndim(values) == 1 and len(values) != num_channels for values in given)
    if has_wrong_length or not gives_float32(transform, pending):
        return as_monai(transform, pending)
    subtract, divide = (None if values is None else per_channel(values, num_channels) for values in given)
    if subtract is not None and divide is not None:
        with np.errstate(over="ignore"):
            scale = (1.0 / np.where(divide == 0.0, 1.0, divide.astype(np.float64))).astype(np.float32)
        if not np.isfinite(scale).all():
            # A number so small that its inverse is not a float32: only a division gives what MONAI gives.
            return as_monai(transform, pending)
        return add_linear(pending, center=subtract, scale=scale, keeps_zero=transform.nonzero)
    pending.add(
        Standardize(subtract=subtract, divide=divide, per_channel=transform.channel_wise, nonzero=transform.nonzero)
    )
    return pending


@adds_steps(array.ThresholdIntensity, dictionary.ThresholdIntensityd, "filter")
def _threshold(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    if pending.dtype != torch.float32:
        return as_monai(transform, pending)
    pending.add(
        Threshold(bound=float(transform.threshold), keeps_above=bool(transform.above), fill=float(transform.cval))
    )
    return pending
