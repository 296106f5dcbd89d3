"""`CropForeground`: the box of the foreground without a mask of the volume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from monai.transforms import CropForeground, CropForegroundd
from monai.transforms.utils import compute_divisible_spatial_size
from monai.utils import ensure_tuple_rep

from voxelocity.interop.monai.deterministic.numba_box import positive_box
from voxelocity.interop.monai.deterministic.shadow import is_whole_volume, shadow, voxels
from voxelocity.interop.monai.deterministic.threshold import threshold_of

_DTYPES = frozenset({torch.float32})
_SPATIAL_AXES = 3

Box = tuple[Any, Any]


def why_not_crop(transform: CropForeground) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    if transform.lazy:
        return "it is evaluated lazily (lazy=True)"
    if threshold_of(transform.select_fn) is None:
        return "its select_fn is not `x > number`, so the whole mask is needed"
    return ""


def why_not_cropd(transform: CropForegroundd) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    return "it is evaluated lazily (lazy=True)" if transform.lazy else why_not_crop(transform.cropper)


def fast_crop(transform: CropForeground) -> CropForeground:
    """The transform with a fast search for the box."""
    return shadow(
        transform, compute_bounding_box=_box_finder(transform), get_transform_info=transform.get_transform_info
    )


def fast_cropd(transform: CropForegroundd) -> CropForegroundd:
    """The dictionary transform with a fast search for the box."""
    return shadow(transform, cropper=fast_crop(transform.cropper))


def _box_finder(transform: CropForeground) -> Callable[[Any], Box]:
    threshold = threshold_of(transform.select_fn)
    assert threshold is not None, "asked without why_not_crop"

    def find(img: Any) -> Box:
        found = _box(voxels(img), transform, float(threshold)) if is_whole_volume(img, _DTYPES) else None
        if found is None:
            found = transform.compute_bounding_box(img)
        return found

    return find


def _box(image_cxyz: Any, transform: CropForeground, threshold: float) -> Box | None:
    """Start and stop (3,) in voxels with margin and divisibility; None if MONAI has an error to raise."""
    shape = image_cxyz.shape[1:]
    margin = np.array(ensure_tuple_rep(transform.margin, _SPATIAL_AXES))
    indices = transform.channel_indices
    channels = np.arange(len(image_cxyz)) if indices is None else np.array(indices)
    if margin.dtype.kind != "i" or channels.dtype.kind != "i" or not channels.size or (margin < 0).any():
        return None
    if (channels >= len(image_cxyz)).any() or (channels < -len(image_cxyz)).any():
        return None
    # torch compares a float32 tensor with the number rounded to float32.
    first, last = positive_box(image_cxyz, channels % len(image_cxyz), np.float32(threshold))
    start, stop = np.zeros(_SPATIAL_AXES, np.int64), np.zeros(_SPATIAL_AXES, np.int64)
    if last[0] >= 0:
        start, stop = first - margin, last + margin + 1
        if transform.allow_smaller:
            start, stop = np.maximum(start, 0), np.minimum(stop, shape)
    # As MONAI does: in 16 bits, with what divisibility adds split between both sides.
    start, stop = start.astype(np.int16), stop.astype(np.int16)
    size = np.asarray(compute_divisible_spatial_size((stop - start).tolist(), k=transform.k_divisible))
    start = start - np.floor_divide(size - (stop - start), 2)
    return start, start + size
