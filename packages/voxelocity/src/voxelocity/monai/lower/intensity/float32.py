"""What the lowered intensity transforms share: one step in float32 for each, and MONAI's own transform for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from monai.utils.type_conversion import get_equivalent_dtype

from voxelocity.monai.lower.lowering import adds_steps, unchanged
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.steps import Linear
from voxelocity.monai.steps.intensity.pointwise import Floats

Steps = Any
"""A step, several, or None where MONAI's own transform is to run."""
_StepsOf = Callable[[Any, PendingTensor], Steps]
FLOAT32 = frozenset({torch.float32})
REAL = FLOAT32 | {
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float64,
}  # fmt: skip


def as_monai(transform: Any, pending: PendingTensor, **given: Any) -> PendingTensor:
    """What MONAI's own array transform makes of it, with the numbers that it has already drawn."""
    if hasattr(transform, "_do_transform"):
        given["randomize"] = False
    return PendingTensor.of(transform(finish(pending), **given))


def gives_float32(transform: Any, pending: PendingTensor, dtypes: frozenset[torch.dtype] = REAL) -> bool:
    """Whether an image is of one of these dtypes, and float32 after the transform if that has an attribute `dtype`."""
    has_none = not hasattr(transform, "dtype")
    return pending.dtype in dtypes and (has_none or _result_dtype(transform, pending) == torch.float32)


def why_not_float32(transform: Any, inner: Any) -> str:
    """Why a transform whose array form may have an attribute `dtype` cannot be lowered."""
    dtype = getattr(inner, "dtype", None)
    if dtype is None or get_equivalent_dtype(dtype, torch.Tensor) == torch.float32:
        return ""
    return f"it returns {dtype}, and intensities are computed in float32; leave dtype at float32"


def cast_idle(transform: Any, pending: PendingTensor) -> PendingTensor:
    """What an array form that converts to its `dtype` in any case returns if it is to do nothing."""
    if _result_dtype(transform, pending) != pending.dtype:
        pending.add(linear(pending))
    return pending


def _result_dtype(transform: Any, pending: PendingTensor) -> torch.dtype:
    result: torch.dtype = get_equivalent_dtype(transform.dtype, torch.Tensor) or pending.dtype
    return result


def changes(
    array: type,
    inner: str = "",
    *,
    dtypes: frozenset[torch.dtype] | None = FLOAT32,
    casts: bool = False,
    **options: Any,
) -> Callable[[_StepsOf], _StepsOf]:
    """Registers `(transform, pending)`, which returns the steps of an intensity transform, or None for MONAI's own.

    Args:
        array: as for `adds_steps`.
        inner: likewise.
        dtypes: of the images that are lowered, if an attribute `dtype` makes them float32; None for any.
        casts: whether the array form converts to its `dtype` even if it is to do nothing.
        options: of `adds_steps`.
    """

    def register(steps_of: _StepsOf) -> _StepsOf:
        @adds_steps(array, inner, **{"why_not": why_not_float32, "idle": cast_idle if casts else unchanged, **options})
        def add(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
            is_taken = dtypes is None or gives_float32(transform, pending, dtypes)
            steps = steps_of(transform, pending) if is_taken else None
            if steps is None:
                return as_monai(transform, pending)
            for step in steps if isinstance(steps, Sequence) else [steps]:
                pending.add(step)
            return pending

        return steps_of

    return register


def linear(
    pending: PendingTensor, *, scale: Any = 1.0, shift: Any = 0.0, center: Any = None, keeps_zero: bool = False
) -> Linear:
    """`(v - center) * scale + shift`, each as for `per_channel`."""
    num = pending.shape[0]
    center = None if center is None else per_channel(center, num)
    return Linear(scale=per_channel(scale, num), shift=per_channel(shift, num), center=center, keeps_zero=keeps_zero)


def per_channel(values: Any, num_channels: int) -> Floats:
    """(c,) float32 of one number for all channels, or of a sequence of at least one for each.

    Raises:
        IndexError: the sequence is shorter.
    """
    if np.ndim(values) == 0:
        return np.full(num_channels, float(values), np.float32)
    return np.array([float(values[channel]) for channel in range(num_channels)], np.float32)
