"""Labels at another number of voxels, label for label as nnU-Net has them, and the empty region that it marks in them.

Each label's share of a voxel is its linear interpolation, in float64 and summed in the order in which SciPy's `zoom`
sums it: where two labels meet in the middle, their shares are equal only then. The largest wins; of equal ones that of
the nearest voxel, if it is among them, else the smallest label, as in `resize_segmentation` of batchgenerators 0.25.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import NativeLoop, has_loops
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.data.prepare import nearest_positions

_AXIS = ("in int64", "in float64")
_resize_labels = NativeLoop("resize_labels", "in int16", "in int64", *_AXIS, *_AXIS, *_AXIS, "out int16")
Int16 = npt.NDArray[np.int16]
_Along = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]

OUTSIDE = -1
"""nnU-Net's label of background voxels in the empty region around a scan."""


def resize_labels(label_xyz: Int16, shape: Index3, *, thick: int | None) -> Int16:
    """The labels on a grid of this shape and the same extent.

    Args:
        label_xyz: int16, in C order.
        shape: of the result.
        thick: the axis along which the nearest plane is taken, if any.
    """
    if label_xyz.shape == shape:
        return label_xyz
    along = [
        _along(before, after, is_nearest=axis == thick)
        for axis, (before, after) in enumerate(zip(label_xyz.shape, shape, strict=True))
    ]
    if not has_loops():
        return resize_labels_slowly(label_xyz, along)
    out = np.empty(shape, dtype=np.int16)
    sizes = np.array([*label_xyz.shape, *shape], dtype=np.int64)
    _resize_labels(label_xyz, sizes, *itertools.chain.from_iterable(along), out)
    return out


def resize_labels_slowly(label_xyz: Int16, along: Sequence[_Along]) -> Int16:
    """The reference of the loop: the same labels, each label's shares in an array of their own."""
    near = label_xyz[np.ix_(*(places[2] for places, _ in along))]
    best, most = near.copy(), np.full(near.shape, -1.0)
    near_share = np.zeros(near.shape)
    for label in np.unique(label_xyz):
        share = np.zeros(near.shape)
        for corner in itertools.product((0, 1), repeat=3):
            part: Any = (label_xyz[np.ix_(*(at[n] for n, (at, _) in zip(corner, along, strict=True)))] == label) * 1.0
            for axis, (n, (_, weights)) in enumerate(zip(corner, along, strict=True)):
                part *= weights[n].reshape([-1 if other == axis else 1 for other in range(3)])
            share += part
        best[share > most] = label
        np.maximum(most, share, out=most)
        near_share[near == label] = share[near == label]
    return np.where(near_share == most, near, best)


def _along(before: int, after: int, *, is_nearest: bool) -> _Along:
    """Of each place on a new axis, the voxels of the old one below, above and nearest; the weights of the first two."""
    nearest = nearest_positions(before, after)
    # As SciPy computes them, bit by bit.
    position = np.clip((np.arange(after) + 0.5) * (before / after) - 0.5, 0.0, before - 1.0)
    below = nearest if is_nearest else np.floor(position)
    low = np.ones(after) if is_nearest else 1.0 - (position - below)
    above = np.minimum(below + (0 if is_nearest else 1), before - 1)
    return np.stack([below, above, nearest]).astype(np.int64), np.stack([low, 1.0 - low])


def outside_of(image_cxyz: Array) -> npt.NDArray[np.bool_] | None:
    """The voxels (x, y, z) that are zero in all channels and linked to a border by such voxels; None if there are none.

    Elsewhere, zeros are holes, which nnU-Net fills by `binary_fill_holes`.
    """
    faces = [np.moveaxis(image_cxyz, axis + 1, 1)[:, [0, -1]] for axis in range(3)]
    if not any((face == 0).all(axis=0).any() for face in faces):
        return None
    from scipy.ndimage import label as components

    empty = (image_cxyz[0] == 0) if len(image_cxyz) == 1 else ~(image_cxyz != 0).any(axis=0)
    numbers, count = components(empty)
    is_outside = np.zeros(count + 1, dtype=bool)
    for axis in range(3):
        is_outside[np.moveaxis(numbers, axis, 0)[[0, -1]]] = True
    is_outside[0] = False
    found: npt.NDArray[np.bool_] = is_outside[numbers]
    return found
