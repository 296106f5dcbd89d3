"""`CropForeground` and `FgBgToIndices`: the foreground's box without a mask, its indices in one pass."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from monai.transforms import CropForeground, CropForegroundd, FgBgToIndices, FgBgToIndicesd
from monai.transforms.utils import compute_divisible_spatial_size, is_positive
from monai.transforms.utils_pytorch_numpy_unification import unravel_indices
from monai.utils import ensure_tuple_rep

from voxelocity.core.volume import Array
from voxelocity.monai.deterministic.native_loops import positive_box
from voxelocity.monai.deterministic.shadow import is_whole_volume, replaces, shadow, voxels, with_meta

_FLOAT32 = frozenset({torch.float32})
_LABEL_DTYPES = frozenset({torch.int16, torch.int32, torch.int64, torch.float32})
# Without an image MONAI inverts the bits of such a label and finds background everywhere.
_LABEL_DTYPES_WITH_IMAGE = _LABEL_DTYPES | {torch.uint8}
_SPATIAL_AXES = 3
_NO_EFFECT = ("RESUME", "NOP", "CACHE", "PRECALL")
_ONLY_A_PARAMETER = ("LOAD_FAST", "LOAD_CONST", "COMPARE_OP", "RETURN_VALUE")

Box = tuple[Any, Any]


def _why_not_crop(transform: CropForeground) -> str:
    is_known = threshold_of(transform.select_fn) is not None
    return "" if is_known else "its select_fn is not `x > number`, so the whole mask is needed"


@replaces(CropForeground, CropForegroundd, held_as="cropper", why_not=_why_not_crop)
def fast_crop(transform: CropForeground) -> CropForeground:
    """The transform with a fast search for the box."""
    return shadow(
        transform, compute_bounding_box=_box_finder(transform), get_transform_info=transform.get_transform_info
    )


def _box_finder(transform: CropForeground) -> Callable[[Any], Box]:
    threshold = threshold_of(transform.select_fn)
    assert threshold is not None, "left to MONAI"

    def find(img: Any) -> Box:
        found = _box(voxels(img), transform, float(threshold)) if is_whole_volume(img, _FLOAT32) else None
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
    # The number is rounded to float32, as torch does before it compares a float32 tensor with it.
    first, last = positive_box(image_cxyz, channels % len(image_cxyz), threshold)
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


def _why_not_indices(transform: FgBgToIndices) -> str:
    if type(transform.image_threshold) not in (int, float):
        return f"image_threshold={transform.image_threshold!r} is not a plain number"
    return ""


@replaces(FgBgToIndices, FgBgToIndicesd, held_as="converter", why_not=_why_not_indices)
class FastIndices:
    """An `FgBgToIndices` whose indices come from one pass over the label. Thread-safe.

    They are int64, ascending, in C order, in tensors that carry the metadata that MONAI leaves with them.
    """

    def __init__(self, transform: FgBgToIndices) -> None:
        self._transform = transform

    def __call__(self, label: Any, image: Any = None, output_shape: Any = None) -> tuple[Any, Any]:
        transform = self._transform
        if image is None:
            is_ours = is_whole_volume(label, _LABEL_DTYPES)
        else:
            is_ours = (
                is_whole_volume(label, _LABEL_DTYPES_WITH_IMAGE)
                and is_whole_volume(image, _FLOAT32)
                and image.shape[1:] == label.shape[1:]
            )
        if not is_ours:
            by_monai: tuple[Any, Any] = transform(label, image, output_shape)
            return by_monai
        shape = transform.output_shape if output_shape is None else output_shape
        foreground, background = _indices(
            voxels(label), None if image is None else voxels(image), transform.image_threshold
        )
        found = with_meta(foreground, label), with_meta(background, label if image is None else image)
        if shape is not None:
            return unravel_indices(found[0], shape), unravel_indices(found[1], shape)
        return found


def _indices(label_cxyz: Array, image_cxyz: Array | None, threshold: float) -> tuple[Array, Array]:
    # The first channel of several is the background of one-hot labels.
    is_foreground = _any(channel != 0 for channel in (label_cxyz[1:] if len(label_cxyz) > 1 else label_cxyz))
    is_background = ~is_foreground
    if image_cxyz is not None:
        # torch compares a float32 tensor with the number rounded to float32.
        is_background &= _any(channel > np.float32(threshold) for channel in image_cxyz)
    # Numpy's memory comes in huge pages, which halves the time of filling it (docs/log).
    return np.flatnonzero(is_foreground), np.flatnonzero(is_background)


def _any(masks: Iterable[Array]) -> Array:
    return functools.reduce(np.logical_or, masks)


def threshold_of(select: Callable[..., Any]) -> float | None:
    """The number t where the function is `x > t` and nothing else, as MONAI's `is_positive` is; else None.

    Found in its bytecode.
    """
    if select is is_positive:
        return 0
    if type(select) is not FunctionType or select.__code__.co_freevars or select.__code__.co_argcount != 1:
        return None
    steps = [step for step in dis.get_instructions(select) if step.opname not in _NO_EFFECT]
    if tuple(step.opname for step in steps) != _ONLY_A_PARAMETER or steps[2].argval != ">":
        return None
    number = steps[1].argval
    return number if type(number) in (int, float) else None
