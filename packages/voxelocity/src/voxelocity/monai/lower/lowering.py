"""What lowering a transform means, and how one is registered: its draw stays MONAI's, its work becomes steps.

A transform is added by one decorated function: `adds_steps` where both forms, array and dictionary, draw as most of
MONAI's do, `lowers` where a form has its own way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from monai import transforms as mt

from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending, why_not_pending

Apply = Callable[[Any, Any], Any]
DeviceReason = Callable[[torch.device], str]
"""Why a transform is not lowered for data on a device that is not a CPU, in words; "" if it is."""
Reason = Callable[[Any, Any], str]
"""(transform, array transform) to why it is not lowered, in words; "" if it is. The second is what a dictionary form
holds, and the transform itself for an array form."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Lowering:
    """How one class of MONAI's transforms is lowered.

    Attributes:
        apply: `(transform, data)` to what the transform would return, with a `PendingTensor` for each tensor
            that it touches. `data` is a dictionary (forms whose name ends in "d"; not changed, a new one is returned,
            or a list of them) or a tensor, array or `PendingTensor`. Random numbers are drawn by the transform itself
            or from its `R`, as many and in the same order as MONAI draws them, so that what follows draws the same.
        why_not: why this instance cannot be lowered, in words that the plan shows; "" if it can.
        why_not_data: `(transform, data)` to why MONAI's own transform takes this data, in words; "" if `apply` does.
    """

    apply: Apply
    why_not: Callable[[Any], str] = lambda transform: ""
    why_not_data: Callable[[Any, Any], str] = lambda transform, data: ""


Lowerings = Mapping[type, Lowering]
"""By exact class: a derived class may have changed anything."""

LOWERINGS: dict[type, Lowering] = {}
"""Every registered lowering; filled when the package is imported."""
EXACT_NOISE: dict[type, Lowering] = {}
"""Those that replace others if noise is to be drawn voxel by voxel."""


def _always(transform: Any, array: Any) -> str:
    return ""


def _everywhere(device: torch.device) -> str:
    return ""


def lowers(
    *kinds: type,
    inner: str = "",
    why_not: Reason = _always,
    why_not_on: DeviceReason = _everywhere,
    takes_anything: bool = False,
) -> Callable[[_Function], _Function]:
    """Registers a function as `Lowering.apply` of these classes.

    Args:
        kinds: MONAI's classes.
        inner: the attribute by which a dictionary form holds its array form, for `why_not`; "" for an array form.
        why_not: why an instance is not lowered.
        why_not_on: why no instance is lowered for data on a device.
        takes_anything: whether values that cannot be pending are the function's; otherwise MONAI's own transform takes
            them.
    """

    def register(apply: _Function) -> _Function:
        made = _lowering(apply, inner, why_not, None if takes_anything else why_not_on)
        LOWERINGS.update(dict.fromkeys(kinds, made))
        return apply

    return register


def unchanged(transform: Any, pending: PendingTensor) -> PendingTensor:
    """What most transforms return if they are to do nothing."""
    return pending


def blindly(transform: Any, pending: PendingTensor | None) -> dict[Any, Any]:
    """A draw that does not depend on the image."""
    transform.randomize(None)
    return {}


def seeing(transform: Any, pending: PendingTensor) -> None:
    """A draw that asks the image for its shape."""
    transform.randomize(pending)


def of_shape(transform: Any, pending: PendingTensor) -> None:
    """A draw of the spatial shape."""
    transform.randomize(pending.spatial_shape)


@dataclass(frozen=True, kw_only=True)
class DrawRule:
    """How a transform draws, in both forms.

    Attributes:
        draw: `(array transform, pending)`: draws from its `R`, first of all whether to do anything, and returns what
            the transform does not keep itself, which becomes `params`. None for a deterministic transform; `params` is
            then a dictionary that all keys share.
        draws: after the dictionary form has drawn whether to do anything, `draw` follows once for all keys, given the
            image of the first ("together", or "always" if also where nothing is to be done), for each key ("each"), or
            not at all ("outside").
        needs_key: whether the dictionary form draws nothing for an item that has none of its keys, whose values it may
            convert: that is left to it.
        idle: what the array form returns if it is to do nothing.
        idle_of_key: likewise, of each key of the dictionary form.
        per_key: attributes with a value for each key of a dictionary form, and one for the array form.
        values_of: `(dictionary transform, item)` to each key with its values, in place of `per_key`; the array form has
            none.
    """

    draw: Callable[[Any, Any], Any] | None = None
    draws: Literal["outside", "together", "always", "each"] = "together"
    needs_key: bool = False
    idle: Callable[[Any, PendingTensor], PendingTensor] = unchanged
    idle_of_key: Callable[[Any, PendingTensor], PendingTensor] = unchanged
    per_key: Sequence[str] = ()
    values_of: Callable[[Any, dict[Any, Any]], Iterable[tuple[Any, ...]]] | None = None


def adds_steps(
    array: type,
    inner: str = "",
    *,
    why_not: Reason = _always,
    why_not_on: DeviceReason = _everywhere,
    table: dict[type, Lowering] = LOWERINGS,
    **draws: Any,
) -> Callable[[_Function], _Function]:
    """Registers `(transform, pending, params, *values of a key)`, which returns it with the array transform's steps.

    Both forms are registered: MONAI's dictionary form is named as the array form, with a "d" at its end. The function
    may change the pending tensor, and return what MONAI's own transform makes of it.

    Args:
        array: MONAI's array form.
        inner: the attribute by which the dictionary form holds the transform that the function is given; "" if that is
            the dictionary form itself.
        why_not: why an instance is not lowered.
        why_not_on: why no instance is lowered for data on a device.
        table: where it is registered.
        draws: fields of `DrawRule`.
    """
    how = DrawRule(**draws)

    def register(add: _Function) -> _Function:
        def to_array(transform: Any, data: Any) -> Any:
            pending = to_pending(data)
            params = {} if how.draw is None else how.draw(transform, pending)
            if how.draw is not None and not transform._do_transform:
                return how.idle(transform, pending)
            return add(transform, pending, params, *(getattr(transform, name) for name in how.per_key))

        def to_dictionary(transform: Any, data: Any) -> Any:
            return _apply_to_keys(add, how, transform, getattr(transform, inner) if inner else transform, dict(data))

        table[array] = _lowering(to_array, "", why_not, why_not_on)
        if (dictionary := getattr(mt, f"{array.__name__}d", None)) is not None:
            table[dictionary] = _lowering(to_dictionary, inner, why_not, why_not_on)
        return add

    return register


def _apply_to_keys(
    add: Callable[..., Any], how: DrawRule, transform: Any, array: Any, item: dict[Hashable, Any]
) -> dict[Hashable, Any]:
    """The item, changed, as the dictionary form makes it."""
    if how.needs_key and transform.first_key(item) == ():
        return dict(transform(finish(item)))
    if how.values_of is None:
        values_of = (getattr(transform, name) for name in how.per_key)
        rows = [(key, *values) for key, _, *values in transform.key_iterator(item, transform.keys, *values_of)]
    else:
        rows = list(how.values_of(transform, item))
    params: Any = {}
    is_idle = False
    if how.draw is not None:
        transform.randomize(None)
        is_idle = not transform._do_transform
        is_together = how.draws == "always" or (how.draws == "together" and not is_idle)
        if is_together and (rows or how.draw is blindly):
            params = how.draw(array, to_pending(item[rows[0][0]]) if rows else None)
    for key, *values in rows:
        pending = to_pending(item[key])
        if is_idle:
            item[key] = how.idle_of_key(array, pending)
            continue
        if how.draw is not None and how.draws == "each":
            params = how.draw(array, pending)
        item[key] = add(array, pending, params, *values)
    return item


def _lowering(apply: Apply, inner: str, why_not: Reason, why_not_on: DeviceReason | None) -> Lowering:
    """A lowering; with a reason for devices, data that it cannot take are for MONAI's own transform."""

    def why_not_data(transform: Any, data: Any) -> str:
        return "" if why_not_on is None else _why_not_data(transform, data, why_not_on)

    @functools.wraps(apply)
    def lowered(transform: Any, data: Any) -> Any:
        if why_not_on is None or not _why_not_data(transform, data, why_not_on, takes_missing=False):
            return apply(transform, data)
        return transform(finish(data))

    def reason(transform: Any) -> str:
        return why_not(transform, getattr(transform, inner) if inner else transform)

    return Lowering(lowered, reason, why_not_data)


def _why_not_data(transform: Any, data: Any, why_not_on: DeviceReason, *, takes_missing: bool = True) -> str:
    """Why MONAI's own transform takes the data, in words; "" if the lowering does.

    Args:
        transform: either form.
        data: what it is given.
        why_not_on: of the lowering.
        takes_missing: whether values that are neither tensors nor arrays count as data of the lowering, which says what
            is wrong with them.
    """
    for value in _values_of(transform, data):
        is_voxels = isinstance(value, PendingTensor | torch.Tensor | np.ndarray)
        reason = "" if takes_missing and not is_voxels else why_not_pending(value)
        if not reason and is_voxels and not isinstance(value, np.ndarray):
            device = PendingTensor.of(value).source.device if isinstance(value, PendingTensor) else value.device
            reason = "" if device.type == "cpu" else why_not_on(device)
        if reason:
            return reason
    return ""


def _values_of(transform: Any, data: Any) -> list[Any]:
    """What a transform works on: the values of its keys that are there, or the data itself for an array form."""
    if not isinstance(data, Mapping):
        return [data]
    return [data[key] for key in getattr(transform, "keys", ()) if key in data]


def why_not_lazy(transform: Any, array: Any = None) -> str:
    """Why a transform with MONAI's lazy resampling, which collects operations and makes them later, is not lowered."""
    is_lazy = getattr(transform, "lazy", False)
    return "lazy=True: MONAI's lazy resampling collects and applies the changes itself" if is_lazy else ""


def first_reason(*reasons: str) -> str:
    """The first that is not empty, or ""."""
    return next(filter(None, reasons), "")
