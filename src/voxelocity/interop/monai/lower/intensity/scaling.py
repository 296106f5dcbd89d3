"""Lowerings of MONAI's random transforms that scale, shift and bend intensities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from monai.transforms.intensity import array, dictionary

from voxelocity.data.augment.steps import Linear
from voxelocity.data.augment.steps.intensity.statistic import Contrast, HistogramShift, ScaleAboutMean, StdShift
from voxelocity.interop.monai.lower.intensity.form import (
    Change,
    array_form,
    as_monai,
    dictionary_form,
    gives_float32,
    per_channel,
    same,
    why_not_float32,
)
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch

_FLOATS = frozenset({torch.float32, torch.float64})


def _draw_seeing(transform: Any, sketch: Sketch) -> None:
    transform.randomize(sketch)


def _draw_blindly(transform: Any, sketch: Sketch | None) -> None:
    transform.randomize(None)


def _scale(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    if not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    num_channels = sketch.shape[0]
    factors = per_channel(transform.factor, num_channels)
    sketch.add(Linear(scale=1.0 + factors, shift=same(num_channels, 0.0)))
    return sketch


def _shift(transform: Any, sketch: Sketch, factor: Any) -> Sketch:
    """RandShiftIntensity, its offset times `factor` where there is one."""
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch, factor=factor)
    num_channels = sketch.shape[0]
    offsets = per_channel(transform._offset, num_channels).astype(np.float64)
    shift = offsets if factor is None else offsets * float(factor)
    sketch.add(Linear(scale=same(num_channels, 1.0), shift=shift.astype(np.float32)))
    return sketch


def _shift_always(transform: Any, sketch: Sketch, factor: Any) -> Sketch:
    """ShiftIntensity, its offset times `factor` where there is one."""
    offset = transform.offset if factor is None else transform.offset * factor
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch, offset=offset)
    num_channels = sketch.shape[0]
    sketch.add(Linear(scale=same(num_channels, 1.0), shift=same(num_channels, float(offset))))
    return sketch


def _shift_by_std(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """StdShiftIntensity and RandStdShiftIntensity."""
    if not gives_float32(transform, sketch):
        return as_monai(transform, sketch)
    sketch.add(StdShift(factor=float(transform.factor), per_channel=transform.channel_wise, nonzero=transform.nonzero))
    return sketch


def _scale_about_mean(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    if not gives_float32(transform, sketch, _FLOATS):
        return as_monai(transform, sketch)
    sketch.add(
        ScaleAboutMean(
            factor=1.0 + per_channel(transform.factor, sketch.shape[0]),
            keeps_mean=transform.fixed_mean,
            keeps_range=transform.preserve_range,
            per_channel=transform.channel_wise,
        )
    )
    return sketch


def _contrast(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """RandAdjustContrast."""
    return _bend(transform.adjust_contrast, transform.gamma_value, sketch)


def _contrast_always(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    """AdjustContrast."""
    return _bend(transform, transform.gamma, sketch)


def _bend(transform: Any, gamma: float, sketch: Sketch) -> Sketch:
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch, gamma=gamma)
    is_inverted, keeps_moments = transform.invert_image, transform.retain_stats
    sketch.add(Contrast(gamma=float(gamma), is_inverted=is_inverted, keeps_moments=keeps_moments))
    return sketch


def _shift_histogram(transform: Any, sketch: Sketch, drawn: None) -> Sketch:
    if sketch.dtype != torch.float32:
        return as_monai(transform, sketch)
    sketch.add(HistogramShift(points=np.array(transform.floating_control_points, np.float64)))
    return sketch


def _factors(transform: Any, data: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Each key of a (random) shift, and the factor that the metadata give for it, or None."""
    for key, name, meta_key, postfix in transform.key_iterator(
        data, transform.factor_key, transform.meta_keys, transform.meta_key_postfix
    ):
        place = meta_key or f"{key}_{postfix}"
        yield key, data[place].get(name) if place in data else None


def _apply_rand_shift(transform: Any, data: Any) -> Any:
    changed = dict(data)
    transform.randomize(None)
    keys = list(transform.key_iterator(changed))
    if not transform._do_transform or not keys:
        return changed | {key: Sketch.of(changed[key]) for key in keys}
    transform.shifter.randomize(Sketch.of(changed[keys[0]]))
    for key, factor in _factors(transform, changed):
        changed[key] = _shift(transform.shifter, Sketch.of(changed[key]).branch(), factor)
    return changed


def _apply_shift(transform: Any, data: Any) -> Any:
    changed = dict(data)
    for key, factor in _factors(transform, changed):
        changed[key] = _shift_always(transform.shifter, Sketch.of(changed[key]).branch(), factor)
    return changed


_SCALE = Change(add=_scale, draw=_draw_seeing, casts=True, why_not=why_not_float32)
_SHIFT = Change(add=_shift, draw=_draw_seeing)
_SHIFT_BY_STD = Change(add=_shift_by_std, draw=_draw_blindly, casts=True, why_not=why_not_float32)
_SHIFT_BY_STD_ALWAYS = Change(add=_shift_by_std, why_not=why_not_float32)
_SCALE_ABOUT_MEAN = Change(add=_scale_about_mean, draw=_draw_seeing, casts=True, why_not=why_not_float32)
_CONTRAST = Change(add=_contrast, draw=_draw_blindly)
_CONTRAST_ALWAYS = Change(add=_contrast_always)
_HISTOGRAM = Change(add=_shift_histogram, draw=_draw_blindly)

LOWERINGS: Lowerings = {
    array.RandScaleIntensity: array_form(_SCALE),
    dictionary.RandScaleIntensityd: dictionary_form(_SCALE, "scaler", draws="first"),
    array.RandShiftIntensity: array_form(_SHIFT),
    dictionary.RandShiftIntensityd: Lowering(_apply_rand_shift),
    array.ShiftIntensity: array_form(Change(add=_shift_always)),
    dictionary.ShiftIntensityd: Lowering(_apply_shift),
    array.RandStdShiftIntensity: array_form(_SHIFT_BY_STD),
    dictionary.RandStdShiftIntensityd: dictionary_form(_SHIFT_BY_STD, "shifter"),
    array.StdShiftIntensity: array_form(_SHIFT_BY_STD_ALWAYS),
    dictionary.StdShiftIntensityd: dictionary_form(_SHIFT_BY_STD_ALWAYS, "shifter"),
    array.ScaleIntensityFixedMean: array_form(Change(add=_scale_about_mean, why_not=why_not_float32)),
    array.RandScaleIntensityFixedMean: array_form(_SCALE_ABOUT_MEAN),
    dictionary.RandScaleIntensityFixedMeand: dictionary_form(_SCALE_ABOUT_MEAN, "scaler", draws="first"),
    array.RandAdjustContrast: array_form(_CONTRAST),
    dictionary.RandAdjustContrastd: dictionary_form(_CONTRAST, "adjuster"),
    array.AdjustContrast: array_form(_CONTRAST_ALWAYS),
    dictionary.AdjustContrastd: dictionary_form(_CONTRAST_ALWAYS, "adjuster"),
    array.RandHistogramShift: array_form(_HISTOGRAM),
    dictionary.RandHistogramShiftd: dictionary_form(_HISTOGRAM, "shifter"),
}
"""For a patch of a single value `RandHistogramShift` does not warn; MONAI's does."""
