"""Lowerings of MONAI's deterministic transforms that bring intensities to a range, for use after a crop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.transforms.intensity import array, dictionary

from voxelocity.data.augment.steps import Linear
from voxelocity.data.augment.steps.intensity.pointwise import Clip, Floats, Threshold
from voxelocity.data.augment.steps.intensity.statistic import PercentileRange, Standardize, Stretch
from voxelocity.interop.monai.lower.intensity.form import (
    Change,
    array_form,
    as_monai,
    dictionary_form,
    gives_float32,
    same,
    why_not_float32,
)
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch

_FLOAT32 = frozenset({torch.float32})
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16})


def _stretch(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """ScaleIntensity."""
    if not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    if transform.minv is not None or transform.maxv is not None:
        sketch.add(Stretch(low=transform.minv, high=transform.maxv, per_channel=transform.channel_wise))
        return sketch
    num_channels = sketch.shape[0]
    factor = 0.0 if transform.factor is None else float(transform.factor)
    sketch.add(Linear(scale=same(num_channels, 1.0 + factor), shift=same(num_channels, 0.0)))
    return sketch


def _to_range(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """ScaleIntensityRange."""
    low, high = transform.b_min, transform.b_max
    # From whole numbers torch subtracts a whole `a_min` within their dtype, where the result may not fit.
    sources = _FLOAT32 | _WHOLE if isinstance(transform.a_min, float) else _FLOAT32
    span = transform.a_max - transform.a_min
    has_no_bound = transform.clip and low is None and high is None
    if span == 0 or has_no_bound or not gives_float32(transform, sketch, sources):
        return as_monai(transform, sketch)
    num_channels = sketch.shape[0]
    width, shift = (1.0, 0.0) if low is None or high is None else (high - low, low)
    sketch.add(
        Linear(
            center=same(num_channels, transform.a_min),
            scale=same(num_channels, width / span),
            shift=same(num_channels, shift),
        )
    )
    if transform.clip:
        sketch.add(
            Clip(
                low=same(num_channels, -np.inf if low is None else low),
                high=same(num_channels, np.inf if high is None else high),
            )
        )
    return sketch


def _to_percentile_range(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """ScaleIntensityRangePercentiles."""
    low, high = transform.b_min, transform.b_max
    has_no_bound = (transform.clip and low is None and high is None) or (
        transform.relative and (low is None or high is None)
    )
    if has_no_bound or not gives_float32(transform, sketch, _FLOAT32):
        return as_monai(transform, sketch)
    if transform.relative:
        low, high = (low + (high - low) * share / 100.0 for share in (transform.lower, transform.upper))
    sketch.add(
        PercentileRange(
            lower=transform.lower,
            upper=transform.upper,
            low=low,
            high=high,
            clips=transform.clip,
            per_channel=transform.channel_wise,
        )
    )
    return sketch


def _standardize(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """NormalizeIntensity."""
    num_channels = sketch.shape[0]
    given = (transform.subtrahend, transform.divisor)
    has_wrong_length = any(np.ndim(values) == 1 and len(values) != num_channels for values in given)
    if has_wrong_length or not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    subtract, divide = (_given(values, num_channels) for values in given)
    if subtract is not None and divide is not None:
        with np.errstate(over="ignore"):
            scale = (1.0 / np.where(divide == 0.0, 1.0, divide.astype(np.float64))).astype(np.float32)
        if not np.isfinite(scale).all():
            # A number so small that its inverse is not a float32: only a division gives what MONAI gives.
            return as_monai(transform, sketch)
        shift = same(num_channels, 0.0)
        sketch.add(Linear(center=subtract, scale=scale, shift=shift, keeps_zero=transform.nonzero))
        return sketch
    sketch.add(
        Standardize(subtract=subtract, divide=divide, per_channel=transform.channel_wise, nonzero=transform.nonzero)
    )
    return sketch


def _given(values: Any, num_channels: int) -> Floats | None:
    """(c,) float32, or None for None."""
    if values is None:
        return None
    return np.broadcast_to(np.asarray(values, np.float32), (num_channels,)).copy()


def _why_not_standardize(transform: Any) -> str:
    for name in ("subtrahend", "divisor"):
        values = getattr(transform, name)
        if values is not None and np.ndim(values) != int(transform.channel_wise):
            wanted = "a number for each channel" if transform.channel_wise else "a number"
            return f"its {name} is an array of {np.ndim(values)} axes, and only {wanted} is lowered"
    return why_not_float32(transform)


def _threshold(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """ThresholdIntensity."""
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch)
    sketch.add(
        Threshold(bound=float(transform.threshold), keeps_above=bool(transform.above), fill=float(transform.cval))
    )
    return sketch


_STRETCH = Change(add=_stretch, why_not=why_not_float32)
_TO_RANGE = Change(add=_to_range, why_not=why_not_float32)
_TO_PERCENTILE_RANGE = Change(add=_to_percentile_range, why_not=why_not_float32)
_STANDARDIZE = Change(add=_standardize, why_not=_why_not_standardize)
_THRESHOLD = Change(add=_threshold)

LOWERINGS: Lowerings = {
    array.ScaleIntensity: array_form(_STRETCH),
    dictionary.ScaleIntensityd: dictionary_form(_STRETCH, "scaler"),
    array.ScaleIntensityRange: array_form(_TO_RANGE),
    dictionary.ScaleIntensityRanged: dictionary_form(_TO_RANGE, "scaler"),
    array.ScaleIntensityRangePercentiles: array_form(_TO_PERCENTILE_RANGE),
    dictionary.ScaleIntensityRangePercentilesd: dictionary_form(_TO_PERCENTILE_RANGE, "scaler"),
    array.NormalizeIntensity: array_form(_STANDARDIZE),
    dictionary.NormalizeIntensityd: dictionary_form(_STANDARDIZE, "normalizer"),
    array.ThresholdIntensity: array_form(_THRESHOLD),
    dictionary.ThresholdIntensityd: dictionary_form(_THRESHOLD, "filter"),
}
"""For a patch of a single value `ScaleIntensityRangePercentiles` does not warn; MONAI's does."""
