"""Copies of MONAI's transforms with the slow part replaced, and the tensors that such a part may take.

A shadow runs MONAI's own code for keys, arguments, metadata and errors; only what was named is replaced.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from monai.data import MetaTensor
from monai.data.meta_obj import get_track_meta

from voxelocity.core.volume import Array

_Transform = TypeVar("_Transform")

_SPATIAL_AXES = 3


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
