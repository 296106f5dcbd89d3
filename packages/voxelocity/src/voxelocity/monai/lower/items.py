"""Types, devices, and which values an item has: steps are made in the wanted type right away, no voxel is read.

Values that are not pending tensors go through MONAI's own transform, which has nothing to do for most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from monai import transforms as mt
from monai.data.meta_tensor import MetaTensor
from monai.utils import get_equivalent_dtype

from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower.lowering import lowers
from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending

_Change = Callable[..., Any]
"""(array transform, value, *values of its key) to the changed value."""


def _each_key(dictionary: type, *per_key: str, **options: Any) -> Callable[[_Change], _Change]:
    """Registers a function also for the dictionary form, which holds the array form as `converter`."""

    def register(change: _Change) -> _Change:
        @lowers(dictionary, inner="converter", takes_anything=True, **options)
        def apply(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
            changed = dict(data)
            values = (getattr(transform, name) for name in per_key)
            for key, _, *of_key in transform.key_iterator(changed, transform.keys, *values):
                changed[key] = change(transform.converter, changed[key], *of_key)
            return changed

        return change

    return register


@lowers(mt.EnsureType, takes_anything=True)
@_each_key(mt.EnsureTyped, "dtype")
def _ensured(transform: Any, value: Any, dtype: Any = None) -> Any:
    dtype = transform.dtype if dtype is None else dtype
    is_other_type = transform.data_type == "numpy" or (
        _is_pending(value) and bool(transform.track_meta) != value.is_tracked
    )
    if not _is_pending(value) or is_other_type or not _is_there(value, transform.device):
        return transform(finish(value), dtype)
    return _cast_to(value, dtype)


@lowers(mt.CastToType, takes_anything=True)
@_each_key(mt.CastToTyped, "dtype")
def _cast(transform: Any, value: Any, dtype: Any = None) -> Any:
    if not _is_pending(value):
        return transform(finish(value), dtype)
    return _cast_to(value, dtype or transform.dtype)


def _why_not_tensors(transform: Any, inner: Any) -> str:
    is_plain = not inner.track_meta
    return "track_meta=False: MONAI then stores its history in the item under its own names" if is_plain else ""


@lowers(mt.ToTensor, takes_anything=True)
@_each_key(mt.ToTensord, why_not=_why_not_tensors)
def _as_tensor(transform: Any, value: Any) -> Any:
    if isinstance(value, MetaTensor):
        # MONAI takes the operations from the very tensor that it is given, which may be a cache's.
        value = value.as_subclass(MetaTensor).copy_meta_from(value)
    is_other_type = not _is_pending(value) or bool(transform.track_meta) != value.is_tracked
    if is_other_type or not _is_there(value, transform.device):
        return transform(finish(value))
    pending = to_pending(value)
    pending.applied_operations = []
    return _cast_to(pending, transform.dtype)


@lowers(mt.ToDevice, takes_anything=True)
@_each_key(mt.ToDeviced)
def _on_device(transform: Any, value: Any) -> Any:
    if _is_pending(value) and not transform.kwargs and _is_there(value, transform.device):
        return value
    return transform(finish(value))


@lowers(mt.Identity, mt.Identityd, mt.DeleteItemsd, mt.SelectItemsd, mt.FlattenSubKeysd, takes_anything=True)
def _by_itself(transform: Any, data: Any) -> Any:
    """MONAI's own transform, which passes pending tensors on like any other value."""
    return transform(data)


@lowers(mt.CopyItemsd, takes_anything=True)
def _copy(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    num = len(transform.keys)
    for time in range(transform.times):
        for key, name in transform.key_iterator(changed, transform.names[time * num : (time + 1) * num]):
            if name in changed:
                raise KeyError(f"CopyItemsd: the item already has a key '{name}', so '{key}' cannot be copied there")
            changed[name] = _copied(changed[key])
    return changed


def _copied(value: Any) -> Any:
    return value.branch() if isinstance(value, PendingTensor) else deep_copy(value)


def _is_pending(value: Any) -> bool:
    """Whether it is to become a tensor, and not a copy of some value."""
    return isinstance(value, PendingTensor) and value.kept is None


def _is_there(pending: PendingTensor, device: Any) -> bool:
    """Whether the device is the tensor's; "cuda" without a number is this thread's current one, as for MONAI."""
    if device is None:
        return True
    wanted, found = torch.device(device), pending.source.device
    if found.type == "cuda" and str(wanted) == "cuda":
        return found.index == torch.cuda.current_device()
    return wanted == found


def _cast_to(value: PendingTensor, kind: Any) -> PendingTensor:
    """The tensor in another type, which waits until its end if that is exact; otherwise it is finished first."""
    if kind is None:
        return value
    pending, dtype = to_pending(value), get_equivalent_dtype(kind, torch.Tensor)
    if dtype == pending.dtype:
        return pending
    if is_exact(pending.held_dtype, pending.dtype) and (is_exact(pending.dtype, dtype) or dtype == torch.float32):
        pending.dtype = dtype
        return pending
    return PendingTensor.of(finish(pending).to(dtype))


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
