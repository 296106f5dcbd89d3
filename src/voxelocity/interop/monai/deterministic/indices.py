"""`FgBgToIndices`: the indices of foreground and background, counted and then written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.transforms import FgBgToIndices, FgBgToIndicesd
from monai.transforms.utils_pytorch_numpy_unification import unravel_indices

from voxelocity.core.volume import Array
from voxelocity.interop.monai.deterministic.numba_indices import fill_places, mark_above, mark_nonzero
from voxelocity.interop.monai.deterministic.shadow import is_whole_volume, shadow, voxels, with_meta

_LABEL_DTYPES = frozenset({torch.int16, torch.int32, torch.int64, torch.float32})
# Without an image MONAI inverts the bits of such a label and finds background everywhere.
_LABEL_DTYPES_WITH_IMAGE = _LABEL_DTYPES | {torch.uint8}
_IMAGE_DTYPES = frozenset({torch.float32})
_NEITHER, _FOREGROUND, _BACKGROUND = np.uint8(0), np.uint8(1), np.uint8(2)


def why_not_indices(transform: FgBgToIndices) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    if type(transform.image_threshold) not in (int, float):
        return f"image_threshold={transform.image_threshold!r} is not a plain number"
    return ""


def why_not_indicesd(transform: FgBgToIndicesd) -> str:
    """Why this transform is left to MONAI; "" if it is not."""
    return why_not_indices(transform.converter)


def fast_indicesd(transform: FgBgToIndicesd) -> FgBgToIndicesd:
    """The dictionary transform with a fast search."""
    return shadow(transform, converter=FastIndices(transform.converter))


class FastIndices:
    """An `FgBgToIndices` whose indices are written in one pass over the label. Thread-safe.

    They are int64, ascending, in C order, in tensors that carry the metadata that MONAI leaves with them.
    """

    def __init__(self, transform: FgBgToIndices) -> None:
        self._transform = transform

    def __call__(self, label: Any, image: Any = None, output_shape: Any = None) -> tuple[Any, Any]:
        """What `FgBgToIndices` returns for this label and image.

        Raises:
            Whatever `FgBgToIndices` raises.
        """
        transform = self._transform
        if image is None:
            is_ours = is_whole_volume(label, _LABEL_DTYPES)
        else:
            is_ours = (
                is_whole_volume(label, _LABEL_DTYPES_WITH_IMAGE)
                and is_whole_volume(image, _IMAGE_DTYPES)
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
    channels = label_cxyz[1:] if len(label_cxyz) > 1 else label_cxyz
    kinds = np.full(channels[0].size, _NEITHER, dtype=np.uint8)
    for channel in channels:
        mark_nonzero(_flat(channel), kinds, _FOREGROUND)
    if image_cxyz is None:
        return _places(kinds, _FOREGROUND), _places(kinds, _NEITHER)
    for channel in image_cxyz:
        # torch compares a float32 tensor with the number rounded to float32.
        mark_above(_flat(channel), np.float32(threshold), kinds, _BACKGROUND)
    return _places(kinds, _FOREGROUND), _places(kinds, _BACKGROUND)


def _places(kinds: Array, kind: np.uint8) -> Array:
    # Numpy's memory comes in huge pages, which halves the time of filling it (docs/log.md).
    places = np.empty(np.count_nonzero(kinds == kind), dtype=np.int64)
    fill_places(kinds, kind, places)
    return places


def _flat(channel_xyz: Array) -> Array:
    return np.ascontiguousarray(channel_xyz).reshape(-1)
