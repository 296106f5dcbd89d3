"""What lowerings of the dictionary and array forms share: which data they can take; MONAI handles the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.data.meta_tensor import MetaTensor

from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.lowering import Lowering
from voxelocity.interop.monai.lower.sketch import Sketch

Apply = Callable[[Any, Any], Any]


def continued(value: Any) -> Sketch:
    """A sketch that may be changed: a branch of the one given, or a new one."""
    if isinstance(value, Sketch) and value.kept is None:
        return value.branch()
    return Sketch.of(value)


def is_sketchable(value: Any) -> bool:
    """Whether a sketch can hold it: a sketch, or a dense tensor or array of two or three spatial axes, on a CPU.

    It cannot hold what waits for MONAI's lazy resampling, a batch, or an image with more axes than its affine, or what
    lies on another device: whether the engine is faster there than MONAI has not been measured.
    """
    if isinstance(value, Sketch):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim in (3, 4) and value.dtype.kind in "biuf"
    if not isinstance(value, torch.Tensor) or value.ndim not in (3, 4) or value.layout != torch.strided:
        return False
    if value.device.type != "cpu":
        return False
    if isinstance(value, MetaTensor):
        is_plain = not value.pending_operations and not value.is_batch
        return is_plain and len(value.affine) >= value.ndim
    return True


def values_of(transform: Any, data: Any) -> list[Any]:
    """What a transform works on: the values of its keys that are there, or the data itself for an array form."""
    if not isinstance(data, Mapping):
        return [data]
    return [data[key] for key in getattr(transform, "keys", ()) if key in data]


def holds_voxels_for_monai(transform: Any, data: Any) -> bool:
    """Whether there are tensors or arrays among these values that no sketch can hold."""
    return any(
        isinstance(value, torch.Tensor | np.ndarray) and not is_sketchable(value)
        for value in values_of(transform, data)
    )


def or_monais(apply: Apply) -> Apply:
    """The lowering, and MONAI's own transform for data that no sketch can hold."""

    @functools.wraps(apply)
    def lowered(transform: Any, data: Any) -> Any:
        if all(map(is_sketchable, values_of(transform, data))):
            return apply(transform, data)
        return transform(finish(data))

    return lowered


def by_key(change: Callable[[Any, Any], Any], of: Callable[[Any], Any]) -> Apply:
    """A dictionary form: `change(of(transform), value)` in place of the value of each of its keys."""

    def apply(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        changed = dict(data)
        for key in transform.key_iterator(changed):
            changed[key] = change(of(transform), changed[key])
        return changed

    return apply


def why_not_lazy(transform: Any) -> str:
    """Why a transform with MONAI's lazy resampling, which collects operations and makes them later, is not lowered."""
    return "lazy=True: MONAI's lazy resampling collects and makes the changes itself" if transform.lazy else ""


def spatial(apply: Apply, why_not: Callable[[Any], str] = why_not_lazy) -> Lowering:
    """The lowering of a spatial transform, with MONAI's own way for data that no sketch can hold."""
    return Lowering(apply=or_monais(apply), why_not=why_not)
