"""Types and devices of sketches: no extra work if the steps can be made in the wanted type right away.

Values that are not sketches go through MONAI's own transform, which has nothing to do for most of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor
from monai.transforms import CastToType, CastToTyped, EnsureType, EnsureTyped, ToDevice, ToDeviced, ToTensor, ToTensord
from monai.utils import get_equivalent_dtype

from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import by_key, continued
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def cast(sketch: Sketch, dtype: torch.dtype) -> Sketch:
    """The sketch in another type: itself, changed, if that can wait until its end; otherwise finished first."""
    is_waiting_exact = is_exact(sketch.held_dtype, sketch.dtype)
    if dtype == sketch.dtype:
        return sketch
    if is_waiting_exact and (is_exact(sketch.dtype, dtype) or dtype == torch.float32):
        sketch.dtype = dtype
        return sketch
    made = finish(sketch)
    return Sketch.of(made.to(dtype))


def is_exact(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether the other type holds every value of the first."""
    if dtype == other or dtype == torch.bool:
        return True
    if other == torch.bool or dtype.is_complex or other.is_complex:
        return False
    if dtype.is_floating_point:
        return other.is_floating_point and torch.finfo(other).bits > torch.finfo(dtype).bits
    of = torch.iinfo(dtype)
    if other.is_floating_point:
        # A type of eps 2**-n holds all whole numbers to 2**(n + 1).
        return bool(max(-of.min, of.max) <= 2 / torch.finfo(other).eps)
    return torch.iinfo(other).min <= of.min and of.max <= torch.iinfo(other).max


def _ensured(transform: Any, value: Any, dtype: Any = None) -> Any:
    dtype = transform.dtype if dtype is None else dtype
    is_other_type = transform.data_type == "numpy" or (
        _is_sketch(value) and bool(transform.track_meta) != value.is_tracked
    )
    if not _is_sketch(value) or is_other_type or not _is_there(value, transform.device):
        return transform(finish(value), dtype)
    return _cast_to(value, dtype)


def _cast(transform: Any, value: Any, dtype: Any = None) -> Any:
    if not _is_sketch(value):
        return transform(finish(value), dtype)
    return _cast_to(value, dtype or transform.dtype)


def _as_tensor(transform: Any, value: Any) -> Any:
    if isinstance(value, MetaTensor):
        # MONAI takes the operations from the very tensor that it is given, which may be a cache's.
        value = value.as_subclass(MetaTensor).copy_meta_from(value)
    if not _is_sketch(value) or bool(transform.track_meta) != value.is_tracked:
        return transform(finish(value))
    if not _is_there(value, transform.device):
        return transform(finish(value))
    sketch = continued(value)
    sketch.applied_operations = []
    return _cast_to(sketch, transform.dtype)


def _on_device(transform: Any, value: Any) -> Any:
    if _is_sketch(value) and not transform.kwargs and _is_there(value, transform.device):
        return value
    return transform(finish(value))


def _is_sketch(value: Any) -> bool:
    """Whether it is to become a tensor, and not a copy of some value."""
    return isinstance(value, Sketch) and value.kept is None


def _cast_to(sketch: Sketch, dtype: Any) -> Sketch:
    if dtype is None:
        return sketch
    return cast(continued(sketch), get_equivalent_dtype(dtype, torch.Tensor))


def _is_there(sketch: Sketch, device: Any) -> bool:
    """Whether the device is the sketch's; "cuda" without a number may mean another one later."""
    return device is None or torch.device(device) == sketch.source.device


def _ensured_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    for key, dtype in transform.key_iterator(changed, transform.dtype):
        changed[key] = _ensured(transform.converter, changed[key], dtype)
    return changed


def _cast_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    for key, dtype in transform.key_iterator(changed, transform.dtype):
        changed[key] = _cast(transform.converter, changed[key], dtype)
    return changed


def _converter(transform: Any) -> Any:
    return transform.converter


def _why_not_tensors(transform: Any) -> str:
    is_plain = not transform.converter.track_meta
    return "track_meta=False: MONAI then keeps its history under names of its own in the item" if is_plain else ""


LOWERINGS: Lowerings = {
    EnsureType: Lowering(apply=_ensured),
    EnsureTyped: Lowering(apply=_ensured_d),
    CastToType: Lowering(apply=_cast),
    CastToTyped: Lowering(apply=_cast_d),
    ToTensor: Lowering(apply=_as_tensor),
    ToTensord: Lowering(apply=by_key(_as_tensor, _converter), why_not=_why_not_tensors),
    ToDevice: Lowering(apply=_on_device),
    ToDeviced: Lowering(apply=by_key(_on_device, _converter)),
}
