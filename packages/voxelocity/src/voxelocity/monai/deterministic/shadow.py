"""Copies of MONAI's transforms with the slow part replaced: which there are, and which tensors such a part may take.

A shadow runs MONAI's own code for keys, arguments, metadata and
errors; only what was named is replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from monai.data import MetaTensor
from monai.data.meta_obj import get_track_meta

from voxelocity.core.volume import Array

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


WAYS: dict[type, Way] = {}
"""How each class is made faster; filled when the modules of this package are imported."""


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

        WAYS[array] = Way(why_not_array, make)
        WAYS[dictionary] = Way(why_not_either, make_dictionary)
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
