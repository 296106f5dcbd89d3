"""What the lowered intensity transforms share: results in float32, and MONAI's own transform for all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.utils.type_conversion import get_equivalent_dtype

from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.steps import Linear
from voxelocity.monai.steps.intensity.pointwise import Floats

REAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
)


def as_monai(transform: Any, pending: PendingTensor, **given: Any) -> PendingTensor:
    """What MONAI's own array transform makes of it, with the numbers that it has already drawn."""
    if hasattr(transform, "_do_transform"):
        given["randomize"] = False
    return PendingTensor.of(transform(finish(pending), **given))


def gives_float32(transform: Any, pending: PendingTensor, sources: frozenset[torch.dtype] = REAL) -> bool:
    """Whether an image of this dtype, one of `sources`, is float32 after a transform with an attribute `dtype`."""
    return pending.dtype in sources and _result_dtype(transform, pending) == torch.float32


def why_not_float32(transform: Any, inner: Any) -> str:
    """Why a transform whose array form has an attribute `dtype` cannot be lowered."""
    if inner.dtype is None or get_equivalent_dtype(inner.dtype, torch.Tensor) == torch.float32:
        return ""
    return f"it returns {inner.dtype}, and intensities are computed in float32; leave dtype at float32"


def cast_idle(transform: Any, pending: PendingTensor) -> PendingTensor:
    """What an array form that converts to its `dtype` in any case returns if it is to do nothing."""
    return pending if _result_dtype(transform, pending) == pending.dtype else add_linear(pending)


def _result_dtype(transform: Any, pending: PendingTensor) -> torch.dtype:
    result: torch.dtype = get_equivalent_dtype(transform.dtype, torch.Tensor) or pending.dtype
    return result


def add_linear(
    pending: PendingTensor, *, scale: Any = 1.0, shift: Any = 0.0, center: Any = None, keeps_zero: bool = False
) -> PendingTensor:
    """The pending tensor with `(v - center) * scale + shift`, each as for `per_channel`."""
    num = pending.shape[0]
    scale, shift = per_channel(scale, num), per_channel(shift, num)
    center = None if center is None else per_channel(center, num)
    pending.add(Linear(scale=scale, shift=shift, center=center, keeps_zero=keeps_zero))
    return pending


def per_channel(values: Any, num_channels: int) -> Floats:
    """(c,) float32 of one number for all channels, or of a sequence of at least one for each.

    Raises:
        IndexError: the sequence is shorter.
    """
    if np.ndim(values) == 0:
        return np.full(num_channels, float(values), np.float32)
    return np.array([float(values[channel]) for channel in range(num_channels)], np.float32)
