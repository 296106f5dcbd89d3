"""What the lowered intensity transforms share: results in float32, and MONAI's own transform for all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.utils.type_conversion import get_equivalent_dtype

from voxelocity.monai.lower.sketch import Sketch, finish
from voxelocity.monai.steps import Linear
from voxelocity.monai.steps.intensity.pointwise import Floats

REAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
)


def as_monai(transform: Any, sketch: Sketch, **given: Any) -> Sketch:
    """What MONAI's own array transform makes of it, with the numbers that it has already drawn."""
    if hasattr(transform, "_do_transform"):
        given["randomize"] = False
    return Sketch.of(transform(finish(sketch), **given))


def gives_float32(transform: Any, sketch: Sketch, sources: frozenset[torch.dtype] = REAL) -> bool:
    """Whether an image of this dtype, one of `sources`, is float32 after a transform with an attribute `dtype`."""
    return sketch.dtype in sources and _result_dtype(transform, sketch) == torch.float32


def why_not_float32(transform: Any, inner: Any) -> str:
    """Why a transform whose array form has an attribute `dtype` cannot be lowered."""
    if inner.dtype is None or get_equivalent_dtype(inner.dtype, torch.Tensor) == torch.float32:
        return ""
    return f"it returns {inner.dtype}, and intensities are computed in float32; leave dtype at float32"


def cast_idle(transform: Any, sketch: Sketch) -> Sketch:
    """What an array form that converts to its `dtype` in any case returns if it is to do nothing."""
    return sketch if _result_dtype(transform, sketch) == sketch.dtype else add_linear(sketch)


def _result_dtype(transform: Any, sketch: Sketch) -> torch.dtype:
    result: torch.dtype = get_equivalent_dtype(transform.dtype, torch.Tensor) or sketch.dtype
    return result


def add_linear(
    sketch: Sketch, *, scale: Any = 1.0, shift: Any = 0.0, center: Any = None, keeps_zero: bool = False
) -> Sketch:
    """The sketch with `(v - center) * scale + shift`, each as for `per_channel`."""
    num = sketch.shape[0]
    scale, shift = per_channel(scale, num), per_channel(shift, num)
    center = None if center is None else per_channel(center, num)
    sketch.add(Linear(scale=scale, shift=shift, center=center, keeps_zero=keeps_zero))
    return sketch


def per_channel(values: Any, num_channels: int) -> Floats:
    """(c,) float32 of one number for all channels, or of a sequence of at least one for each.

    Raises:
        IndexError: the sequence is shorter.
    """
    if np.ndim(values) == 0:
        return np.full(num_channels, float(values), np.float32)
    return np.array([float(values[channel]) for channel in range(num_channels)], np.float32)
