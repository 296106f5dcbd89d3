"""`Orientation`: axes reversed by one copy into huge pages. MONAI's copy goes into small ones."""

from __future__ import annotations

from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data.utils import to_affine_nd
from monai.transforms import Orientation, Orientationd
from monai.transforms.inverse import TraceableTransform
from monai.utils import SpaceKeys

from voxelocity.core.volume import Array
from voxelocity.monai.deterministic.shadow import is_whole_volume, replaces, voxels, with_meta

_DTYPES = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64})
_LPS_LABELS = (("R", "L"), ("A", "P"), ("I", "S"))
_SPATIAL_AXES = 3


@replaces(Orientation, Orientationd, held_as="ornt_transform", why_not=lambda transform: "")
class FastOrientation:
    """An `Orientation` whose volumes (c, x, y, z) are reversed by one copy. Thread-safe.

    Exchanging axes is a view, as in MONAI. What needs no reversing, or is not a whole volume, is left to MONAI.
    """

    def __init__(self, transform: Orientation) -> None:
        self._transform = transform

    def __call__(self, data_array: Any, lazy: bool | None = None) -> Any:
        transform = self._transform
        if lazy or not is_whole_volume(data_array, _DTYPES):
            return transform(data_array, lazy=lazy)
        turn = _turn(transform, data_array)
        if turn is None or not (turn[:, 1] < 0).any():
            return transform(data_array, lazy=lazy)
        shape = tuple(data_array.shape[1:])
        order = [int(axis) for axis in np.argsort(turn[:, 0])]
        meta = TraceableTransform.track_transform_meta(
            data_array,
            sp_size=np.array([shape[axis] for axis in order]),
            affine=nib.orientations.inv_ornt_aff(turn, shape),
            extra_info={"original_affine": data_array.affine.numpy().copy()},
            orig_size=data_array.peek_pending_shape(),
            transform_info=transform.get_transform_info(),
        )
        flips = [False, *(bool(turn[axis, 1] < 0) for axis in range(_SPATIAL_AXES))]
        return with_meta(_reversed(voxels(data_array), flips).transpose(0, *(axis + 1 for axis in order)), meta)


def _turn(transform: Orientation, image: Any) -> Any:
    """The orientations of nibabel (3, 2) from the volume's axes to the wanted ones; None to leave it to MONAI."""
    source = nib.io_orientation(to_affine_nd(_SPATIAL_AXES, image.affine.numpy()))
    if np.isnan(source).any():
        return None
    if transform.as_closest_canonical:
        return source
    if transform.axcodes is None or len(transform.axcodes) != _SPATIAL_AXES:
        return None
    labels = transform.labels
    if labels is None and "space" in image.meta and SpaceKeys(image.meta["space"]) == SpaceKeys.LPS:
        labels = _LPS_LABELS
    return nib.orientations.ornt_transform(source, nib.orientations.axcodes2ornt(transform.axcodes, labels=labels))


def _reversed(image_cxyz: Array, flips: list[bool]) -> Array:
    """A copy with these axes reversed; the order in memory is kept if it is an order of the axes."""
    in_memory = sorted(range(image_cxyz.ndim), key=lambda axis: -abs(image_cxyz.strides[axis]))
    turned = image_cxyz[tuple(slice(None, None, -1 if is_flipped else 1) for is_flipped in flips)].transpose(in_memory)
    out = np.empty(turned.shape, turned.dtype)
    out[...] = turned
    return out.transpose(np.argsort(in_memory))
