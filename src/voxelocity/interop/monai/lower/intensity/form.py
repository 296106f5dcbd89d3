"""The two forms of MONAI's intensity transforms, array and dictionary, over one description of what each does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from monai.utils.type_conversion import get_equivalent_dtype

from voxelocity.data.augment.steps import Linear
from voxelocity.data.augment.steps.intensity.pointwise import Floats
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.lowering import Lowering
from voxelocity.interop.monai.lower.sketch import Sketch

REAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
)


def _nothing(transform: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an array transform does, in two parts.

    Attributes:
        add: `(transform, sketch, drawn)` to the sketch with the steps, given what `draw` returned; the sketch may be
            changed. Where the result would not be float32, it is `as_monai`'s.
        draw: `(transform, sketch)`: draws from the transform's `R`, first of all whether to do anything, and returns
            what the transform does not keep itself. None for a deterministic transform. The sketch is None for
            those that draw the same for any image.
        casts: whether the array form converts to its `dtype` even if the draw is to do nothing.
        why_not: as `Lowering.why_not`, of the array transform.
    """

    add: Callable[[Any, Sketch, Any], Sketch]
    draw: Callable[[Any, Any], Any] | None = None
    casts: bool = False
    why_not: Callable[[Any], str] = _nothing


def array_form(change: Change) -> Lowering:
    """The lowering of the array transform itself."""

    def apply(transform: Any, data: Any) -> Sketch:
        sketch = Sketch.of(data).branch()
        drawn = None
        if change.draw is not None:
            drawn = change.draw(transform, sketch)
            if not transform._do_transform:
                return _cast(transform, sketch) if change.casts else sketch
        return change.add(transform, sketch, drawn)

    return Lowering(apply, change.why_not)


def dictionary_form(change: Change, inner: str, draws: Literal["first", "once", "each"] = "once") -> Lowering:
    """The lowering of the dictionary transform that keeps the array transform as its attribute `inner`.

    Args:
        change: of the array transform.
        inner: name of the attribute.
        draws: once for all keys, seeing the first of them or none, or again for each key. Ignored for a
            deterministic transform.
    """

    def apply(transform: Any, data: Any) -> Any:
        changed = dict(data)
        array = getattr(transform, inner)
        keys = list_of_keys(transform, changed)
        if change.draw is None:
            for key in keys:
                changed[key] = change.add(array, Sketch.of(changed[key]).branch(), None)
            return changed
        transform.randomize(None)
        if not transform._do_transform or (draws == "first" and not keys):
            return changed | {key: Sketch.of(changed[key]) for key in keys}
        drawn = None
        if draws != "each":
            drawn = change.draw(array, Sketch.of(changed[keys[0]]) if draws == "first" else None)
        for key in keys:
            sketch = Sketch.of(changed[key]).branch()
            if draws == "each":
                drawn = change.draw(array, sketch)
            changed[key] = change.add(array, sketch, drawn)
        return changed

    return Lowering(apply, lambda transform: change.why_not(getattr(transform, inner)))


def list_of_keys(transform: Any, data: dict[Any, Any]) -> list[Any]:
    """Those of a dictionary transform that the data has.

    Raises:
        KeyError: one is missing, and the transform does not allow that.
    """
    return list(transform.key_iterator(data))


def as_monai(transform: Any, sketch: Sketch, **given: Any) -> Sketch:
    """What MONAI's own array transform makes of it, with the numbers that it has already drawn."""
    if hasattr(transform, "_do_transform"):
        given["randomize"] = False
    return Sketch.of(transform(finish(sketch), **given))


def gives_float32(transform: Any, sketch: Sketch, sources: frozenset[torch.dtype] = REAL) -> bool:
    """Whether an image of this dtype, one of `sources`, is float32 after a transform with an attribute `dtype`."""
    result = get_equivalent_dtype(transform.dtype, torch.Tensor) or sketch.dtype
    return sketch.dtype in sources and result == torch.float32


def why_not_float32(transform: Any) -> str:
    """Why a transform with an attribute `dtype` cannot be lowered."""
    if transform.dtype is None or get_equivalent_dtype(transform.dtype, torch.Tensor) == torch.float32:
        return ""
    return f"it returns {transform.dtype}, and intensities are computed in float32; leave dtype at float32"


def per_channel(values: Any, num_channels: int) -> Floats:
    """(c,) float32 of one number for all channels, or of a sequence of at least one for each.

    Raises:
        IndexError: the sequence is shorter.
    """
    if np.ndim(values) == 0:
        return np.full(num_channels, float(values), np.float32)
    return np.array([float(values[channel]) for channel in range(num_channels)], np.float32)


def same(num_channels: int, value: float) -> Floats:
    """(c,) float32 of this number."""
    return np.full(num_channels, value, np.float32)


def _cast(transform: Any, sketch: Sketch) -> Sketch:
    result = get_equivalent_dtype(transform.dtype, torch.Tensor) or sketch.dtype
    if result == sketch.dtype:
        return sketch
    num_channels = sketch.shape[0]
    sketch.add(Linear(scale=same(num_channels, 1.0), shift=same(num_channels, 0.0)))
    return sketch
