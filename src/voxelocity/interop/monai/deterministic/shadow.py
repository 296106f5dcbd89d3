"""Copies of MONAI's transforms with the slow part replaced: for which of them, and which tensors such a part may take.

A transform is known by its exact class and arguments. A shadow runs MONAI's own code for keys, arguments, metadata and
errors; only what was named is replaced.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from monai.data import MetaTensor
from monai.data.meta_obj import get_track_meta

from voxelocity.core.jit import has_numba
from voxelocity.core.volume import Array
from voxelocity.interop.monai.compared import plain_class, why_not_readable

_Transform = TypeVar("_Transform")
_Maker = TypeVar("_Maker", bound=Callable[[Any], Any])

_SPATIAL_AXES = 3


@dataclass(frozen=True)
class Way:
    """How one class is made faster.

    Attributes:
        why_not: why a transform is left to MONAI, in words; "" if it is not.
        make: makes the faster one.
    """

    why_not: Callable[[Any], str]
    make: Callable[[Any], Callable[..., Any]]


_WAYS: dict[type, Way] = {}


def faster(transform: object) -> Callable[..., Any] | None:
    """A callable that returns what this MONAI transform returns, faster; None if there is none.

    It takes and returns the same items: the same keys, types, metadata and applied operations, so MONAI can invert its
    results. Labels, boxes and indices are equal; intensities to the tolerances in docs/monai.md. It holds the arguments
    that the transform has now; neither the transform nor the item is changed. It raises what MONAI raises. Thread-safe.

    Args:
        transform: of exactly one of MONAI's classes; subclasses are never replaced.
    """
    return None if why_not(transform) else _ways()[plain_class(transform)].make(transform)


def why_not(transform: object) -> str:
    """Why `faster` has nothing for this transform, in words; empty if it has."""
    if not has_numba():
        return "Numba is not installed, so no loop can be compiled"
    way = _ways().get(plain_class(transform))
    if way is not None:
        return why_not_readable(transform) or way.why_not(transform)
    name = type(transform).__name__
    for known in _ways():
        if isinstance(transform, known):
            return f"{name} is a subclass of {known.__name__}: what it changes is not known"
    return f"{name} has no faster equivalent here"


@functools.cache
def _ways() -> dict[type, Way]:
    # Compiled loops are imported when the first transform is asked about, not with the package.
    from voxelocity.interop.monai.deterministic import foreground, intensity, load, orientation, spacing  # noqa: F401

    return _WAYS


def replaces(
    array: type,
    dictionary: type,
    *,
    held_as: str,
    why_not: Callable[[Any], str],
    why_not_dictionary: Callable[[Any], str] = lambda transform: "",
) -> Callable[[_Maker], _Maker]:
    """Registers what is decorated, which makes the faster form of an array transform, for it and its dictionary form.

    Args:
        array: MONAI's class.
        dictionary: that of its dictionary form.
        held_as: the attribute in which the dictionary form has the array form.
        why_not: as in `Way`, of the array form. What is evaluated lazily is always left to MONAI.
        why_not_dictionary: likewise, of what only the dictionary form has.
    """

    def register(make: _Maker) -> _Maker:
        def why_not_array(transform: Any) -> str:
            return why_not_lazy(transform) or why_not(transform)

        def why_not_either(transform: Any) -> str:
            held = getattr(transform, held_as)
            return why_not_lazy(transform) or why_not_array(held) or why_not_dictionary(transform)

        def make_dictionary(transform: Any) -> Any:
            return shadow(transform, **{held_as: make(getattr(transform, held_as))})

        _WAYS[array] = Way(why_not_array, make)
        _WAYS[dictionary] = Way(why_not_either, make_dictionary)
        return make

    return register


def why_not_lazy(transform: Any) -> str:
    """Why what is evaluated lazily is left to MONAI; "" if it is not lazy."""
    return "it is evaluated lazily (lazy=True)" if getattr(transform, "lazy", False) else ""


def shadow(transform: _Transform, **replaced: Any) -> _Transform:
    """A shallow copy with these attributes. The transform does not change, and the copy keeps its current state."""
    twin = copy.copy(transform)
    for name, value in replaced.items():
        setattr(twin, name, value)
    return twin


def is_whole_volume(image: object, dtypes: frozenset[torch.dtype]) -> bool:
    """Whether this is a MetaTensor (c, x, y, z) in main memory with nothing pending, and metadata are tracked."""
    return (
        isinstance(image, MetaTensor)
        and get_track_meta()
        and image.ndim == _SPATIAL_AXES + 1
        and image.numel() > 0
        and image.dtype in dtypes
        and image.device.type == "cpu"
        and not image.requires_grad
        and not image.is_batch
        and not image.has_pending_operations
        and tuple(image.affine.shape) == (_SPATIAL_AXES + 1, _SPATIAL_AXES + 1)
    )


def voxels(image: MetaTensor) -> Array:
    """The memory of the tensor as an array: a view."""
    array: Array = image.as_tensor().numpy()
    return array


def with_meta(array: Array, meta: Any) -> MetaTensor:
    """The array as a MetaTensor, without a copy, with all that `meta` carries copied as MONAI's operations copy it."""
    image = MetaTensor(torch.from_numpy(array))
    image.copy_meta_from(meta)
    return image
