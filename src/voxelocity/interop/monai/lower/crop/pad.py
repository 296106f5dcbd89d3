"""Pads with a constant, and pads and crops to a size, as boxes that reach beyond the array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.transforms import (
    BorderPad,
    BorderPadd,
    DivisiblePad,
    DivisiblePadd,
    Pad,
    Padd,
    ResizeWithPadOrCrop,
    ResizeWithPadOrCropd,
    SpatialPad,
    SpatialPadd,
)

from voxelocity.interop.monai.lower.crop.boxes import boxed, fill_of, sliced
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import continued, spatial, why_not_lazy
from voxelocity.interop.monai.lower.lowering import Lowerings

_FILLS = ("value", "constant_values")


def _padded(transform: Any, value: Any) -> Any:
    sketch = continued(value)
    fill = fill_of(_fill(transform), sketch.dtype)
    if fill is None:
        return transform(finish(value), mode="constant")  # by numpy, or refused
    shape = sketch.spatial_shape
    to_pad = transform.compute_pad_width(shape) if transform.to_pad is None else transform.to_pad
    before, after = _sides(to_pad, len(shape))
    sides = [side + one + other for side, one, other in zip(shape, before, after, strict=True)]
    return boxed(sketch, [-one for one in before], sides, fill)


def _resized(transform: Any, value: Any) -> Any:
    sketch = continued(value)
    fill = fill_of(_fill(transform.padder), sketch.dtype)
    if fill is None:
        return transform(finish(value), mode="constant")
    shape = sketch.spatial_shape
    start, sides = sliced(transform.cropper.compute_slices(shape), shape)
    before, after = _sides(transform.padder.compute_pad_width(sides), len(shape))
    start = [begin - one for begin, one in zip(start, before, strict=True)]
    sides = [side + one + other for side, one, other in zip(sides, before, after, strict=True)]
    return boxed(sketch, start, sides, fill)


def _padded_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    change = _resized if type(transform.padder) is ResizeWithPadOrCrop else _padded
    for key in transform.key_iterator(changed):
        changed[key] = change(transform.padder, changed[key])
    return changed


def _sides(to_pad: Sequence[Sequence[int]], num_axes: int) -> tuple[list[int], list[int]]:
    """How much is put before and after each spatial axis, from widths that begin with the channels'."""
    widths = [(int(before), int(after)) for before, after in to_pad][1 : num_axes + 1]
    widths += [(0, 0)] * (num_axes - len(widths))
    return [before for before, _ in widths], [after for _, after in widths]


def _fill(padder: Any) -> Any:
    return next((padder.kwargs[name] for name in _FILLS if name in padder.kwargs), 0.0)


def _why_not(transform: Any) -> str:
    return why_not_lazy(transform) or _why_not_mode(transform.mode) or _why_not_padder(transform)


def _why_not_resized(transform: Any) -> str:
    return why_not_lazy(transform) or _why_not_mode(transform.padder.mode) or _why_not_padder(transform.padder)


def _why_not_d(transform: Any) -> str:
    padder = transform.padder
    if type(padder) not in _PADDERS:
        return f"its padder is a {type(padder).__name__}, which is not known"
    reasons = (why_not_lazy(transform), *map(_why_not_mode, transform.mode))
    inner = padder.padder if type(padder) is ResizeWithPadOrCrop else padder
    return next(filter(None, reasons), "") or _why_not_padder(inner)


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


_PADDERS = (Pad, SpatialPad, BorderPad, DivisiblePad, ResizeWithPadOrCrop)

LOWERINGS: Lowerings = {
    Pad: spatial(_padded, _why_not),
    SpatialPad: spatial(_padded, _why_not),
    BorderPad: spatial(_padded, _why_not),
    DivisiblePad: spatial(_padded, _why_not),
    ResizeWithPadOrCrop: spatial(_resized, _why_not_resized),
    Padd: spatial(_padded_d, _why_not_d),
    SpatialPadd: spatial(_padded_d, _why_not_d),
    BorderPadd: spatial(_padded_d, _why_not_d),
    DivisiblePadd: spatial(_padded_d, _why_not_d),
    ResizeWithPadOrCropd: spatial(_padded_d, _why_not_d),
}
