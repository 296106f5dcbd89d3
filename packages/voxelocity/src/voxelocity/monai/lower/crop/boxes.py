"""Crops and pads whose place depends on sizes alone: boxes that may reach beyond the array, as one step each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.utils import ensure_tuple, ensure_tuple_rep

from voxelocity.monai.compared import plain_class
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower.lowering import adds_steps, first_reason, lowers, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending, why_not_pending
from voxelocity.monai.steps import Crop

_FILLS = ("value", "constant_values")
_PADDERS = (mt.Pad, mt.SpatialPad, mt.BorderPad, mt.DivisiblePad, mt.ResizeWithPadOrCrop)


def _why_not_given(transform: Any, inner: Any) -> str:
    return "its box is in the item" if getattr(transform, "requires_current_data", False) else why_not_lazy(transform)


@adds_steps(mt.SpatialCrop, "cropper", why_not=_why_not_given)
def _crop_given(transform: Any, pending: PendingTensor, params: Any) -> Any:
    slices = ensure_tuple(transform.slices)
    if any((taken.start or 0) < -side for taken, side in zip(slices, pending.spatial_shape, strict=False)):
        return transform(finish(pending))  # MONAI's affine then points before the array
    return add_crop(pending, slices)


@adds_steps(mt.CenterSpatialCrop, "cropper", why_not=why_not_lazy)
def _crop_center(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    return add_crop(pending, transform.compute_slices(pending.spatial_shape))


@adds_steps(mt.CenterScaleCrop, "cropper", why_not=why_not_lazy)
def _crop_share(transform: Any, pending: PendingTensor, params: Any) -> PendingTensor:
    shape = pending.spatial_shape
    scales = ensure_tuple_rep(transform.roi_scale, len(shape))
    roi_size = [math.ceil(scale * side) for scale, side in zip(scales, shape, strict=True)]
    return add_crop(pending, mt.CenterSpatialCrop(roi_size).compute_slices(shape))


@lowers(mt.RandSpatialCrop, mt.RandScaleCrop, why_not=why_not_lazy)
def _crop_anywhere(transform: Any, value: Any) -> PendingTensor:
    transform.randomize(PendingTensor.of(value).spatial_shape)
    return _as_drawn(transform, value)


@lowers(mt.RandSpatialCropd, mt.RandScaleCropd, why_not=why_not_lazy)
def _crop_anywhere_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    transform.randomize(PendingTensor.of(changed[transform.first_key(changed)]).spatial_shape)
    for key in transform.key_iterator(changed):
        changed[key] = _as_drawn(transform.cropper, changed[key])
    return changed


def _as_drawn(cropper: Any, value: Any) -> PendingTensor:
    """The box that the cropper drew last, as it lies in this value."""
    if cropper.random_center:
        return add_crop(value, cropper._slices)
    return add_crop(value, mt.CenterSpatialCrop(cropper._size).compute_slices(PendingTensor.of(value).spatial_shape))


@lowers(mt.RandSpatialCropSamples, why_not=why_not_lazy)
def _samples(transform: Any, value: Any) -> list[PendingTensor]:
    whole = PendingTensor.of(value)
    return [number_sample(_crop_anywhere(transform.cropper, whole), number) for number in range(transform.num_samples)]


@lowers(mt.RandSpatialCropSamplesd, why_not=why_not_lazy)
def _samples_d(transform: Any, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    transform.randomize()

    def of_key(value: Any) -> list[PendingTensor]:
        transform.cropper.set_random_state(seed=int(transform.sub_seed))
        return _samples(transform.cropper, value)

    return samples_of(transform, data, of_key)


def number_sample(pending: PendingTensor, number: int, **meta: Any) -> PendingTensor:
    """The pending tensor of a sample with its number, and more, in the metadata if they are tracked."""
    if pending.is_tracked:
        pending.meta |= {"patch_index": number, **meta}
    return pending


def samples_of(
    transform: Any, data: Mapping[Hashable, Any], crops_of: Callable[[Any], Sequence[PendingTensor]]
) -> list[dict[Hashable, Any]]:
    """A dictionary for each sample: `crops_of` the values of the transform's keys, and its own copy of all others.

    Tensors and arrays are copied when they are finished, if nothing has touched them until then.
    """
    samples = [
        {key: value if key in transform.keys else _copied(value) for key, value in data.items()}
        for _ in range(transform.cropper.num_samples)
    ]
    for key in transform.key_iterator(dict(data)):
        for sample, pending in zip(samples, crops_of(data[key]), strict=True):
            sample[key] = pending
    return samples


def _copied(value: Any) -> Any:
    if isinstance(value, PendingTensor):
        return value.branch()
    return deep_copy(value) if why_not_pending(value) else PendingTensor.keeping(value)


def _why_not_mode(mode: Any) -> str:
    return "" if mode == "constant" else f"mode={str(mode)!r}: only padding with a constant is lowered"


def _why_not_padder(padder: Any) -> str:
    others = sorted(set(padder.kwargs) - set(_FILLS))
    if others or len(padder.kwargs) > 1:
        return f"{', '.join(others or _FILLS)}: arguments of torch's or numpy's pad that are not lowered"
    if not isinstance(_fill(padder), int | float | np.number):
        return f"pads with {_fill(padder)!r}: only one number for all sides is lowered"
    if padder.to_pad is not None and tuple(padder.to_pad[0]) != (0, 0):
        return "pads the channels"
    return ""


def _why_not_pad(transform: Any, inner: Any) -> str:
    if plain_class(inner) not in _PADDERS:
        return f"its padder is a {type(inner).__name__}, which is not known"
    # A dictionary form has a mode for each key, and a resize the one of its padder.
    padder = inner.padder if isinstance(inner, mt.ResizeWithPadOrCrop) else inner
    modes = transform.mode if inner is not transform else [padder.mode]
    return first_reason(why_not_lazy(transform), *map(_why_not_mode, modes), _why_not_padder(padder))


@adds_steps(mt.Pad, "padder", why_not=_why_not_pad)
@adds_steps(mt.SpatialPad, "padder", why_not=_why_not_pad)
@adds_steps(mt.BorderPad, "padder", why_not=_why_not_pad)
@adds_steps(mt.DivisiblePad, "padder", why_not=_why_not_pad)
@adds_steps(mt.ResizeWithPadOrCrop, "padder", why_not=_why_not_pad)
def _pad(transform: Any, pending: PendingTensor, params: Any) -> Any:
    is_resize = isinstance(transform, mt.ResizeWithPadOrCrop)
    padder = transform.padder if is_resize else transform
    shape = pending.spatial_shape
    fill = fill_of(_fill(padder), pending.dtype)
    if fill is None:
        return transform(finish(pending), mode="constant")  # by numpy, or refused
    start, sides = [0] * len(shape), list(shape)
    if is_resize:
        start, sides = sliced(transform.cropper.compute_slices(shape), shape)
    to_pad = padder.compute_pad_width(sides) if padder.to_pad is None else padder.to_pad
    before, after = _sides(to_pad, len(shape))
    start = [begin - num for begin, num in zip(start, before, strict=True)]
    sides = [side + num_before + num_after for side, num_before, num_after in zip(sides, before, after, strict=True)]
    return add_box(pending, start, sides, fill)


def _sides(to_pad: Sequence[Sequence[int]], num_axes: int) -> tuple[list[int], list[int]]:
    """How much is put before and after each spatial axis, from widths that begin with the channels'."""
    widths = [(int(before), int(after)) for before, after in to_pad][1 : num_axes + 1]
    widths += [(0, 0)] * (num_axes - len(widths))
    return [before for before, _ in widths], [after for _, after in widths]


def _fill(padder: Any) -> Any:
    return next((padder.kwargs[name] for name in _FILLS if name in padder.kwargs), 0.0)


def add_crop(value: Any, slices: Sequence[slice]) -> PendingTensor:
    """The box that slices (steps of 1) take of the value."""
    pending = to_pending(value)
    return add_box(pending, *sliced(slices, pending.spatial_shape))


def add_box(pending: PendingTensor, start: Sequence[int], shape: Sequence[int], fill: float = 0.0) -> PendingTensor:
    """The pending tensor with the box as a further step, or without one if the box is the whole array.

    Changes the pending tensor, or finishes it first if the type that its steps are made in cannot hold `fill`.

    Args:
        pending: with two or three spatial axes.
        start: on each of them, may lie before or beyond the array.
        shape: of the box.
        fill: what lies beyond the array, a value of the pending tensor's dtype (`fill_of`).
    """
    if not any(start) and tuple(shape) == pending.spatial_shape:
        pending.relocate(np.eye(4))
        return pending
    is_filled = any(s < 0 or s + n > side for s, n, side in zip(start, shape, pending.spatial_shape, strict=True))
    if not is_filled:
        fill = 0.0
    elif not _is_same(fill_of(fill, pending.held_dtype), fill):
        pending = PendingTensor.of(finish(pending))
    x, y, z = (*start, 0)[:3]
    nx, ny, nz = (*shape, 1)[:3]
    pending.add(_crop(int(x), int(y), int(z), int(nx), int(ny), int(nz), fill))
    return pending


def fill_of(value: float, dtype: torch.dtype) -> float | None:
    """The value as an array of the dtype would hold it, or None if that is refused."""
    try:
        return float(torch.full((), value, dtype=dtype).item())
    except (RuntimeError, TypeError):
        return None


def sliced(slices: Sequence[slice], shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Start and shape of the box that slices (steps of 1) take of an array; axes without a slice are taken whole."""
    start, sides = [], []
    for axis, side in enumerate(shape):
        taken = slices[axis] if axis < len(slices) else slice(None)
        first, last, _ = taken.indices(side)
        begin = taken.start or 0
        start.append(side + begin if begin < 0 else begin)
        sides.append(max(last - first, 0))
    return start, sides


def _is_same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (math.isnan(one) and math.isnan(other)))


@functools.lru_cache(maxsize=1024)
def _crop(x: int, y: int, z: int, nx: int, ny: int, nz: int, fill: float) -> Crop:
    """Equal boxes are one object, so `run` knows that an image and its label are taken from the same place."""
    return Crop(start=(x, y, z), shape=(nx, ny, nz), fill=fill)
