"""Keeps only the largest connected component of a class, where validation cases have shown that it helps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array, slabs

_COUNTED_VALUES = 1 << 20


def keep_largest(prediction_xyz: npt.NDArray[np.uint8], classes: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The prediction in which all but the largest component of each of these classes is background.

    Voxels that touch at a corner are connected, as in nnU-Net; of components of one size the first is kept. Looks only
    at the smallest box around a class, with seven bytes a voxel of it; 512 x 512 x 300 voxels take about 0.6 s.

    Args:
        prediction_xyz: (x, y, z) class indices; not changed.
        classes: class indices from 1.

    Returns:
        The argument itself if nothing is removed, else a copy.
    """
    if not classes:
        return prediction_xyz
    # Takes 0.4 s to import.
    from scipy import ndimage

    neighbors, kept = np.ones((3, 3, 3), bool), prediction_xyz
    boxes = ndimage.find_objects(prediction_xyz, max_label=max(classes))
    for index in classes:
        if boxes[index - 1] is None:
            continue
        components, count = ndimage.label(prediction_xyz[boxes[index - 1]] == index, structure=neighbors)
        if count < 2:
            continue
        kept = prediction_xyz.copy() if kept is prediction_xyz else kept
        largest = 1 + int(np.argmax(voxel_counts(components, 1 + count)[1:]))
        kept[boxes[index - 1]][(components != largest) & (components != 0)] = 0
    return kept


def voxel_counts(indices: Array, num: int) -> Array:
    """How many voxels have each of `num` indices, from 0; `np.bincount` in little memory."""
    counts = np.zeros(num, dtype=np.int64)
    for (slab,) in slabs(indices, max_values=_COUNTED_VALUES):
        counts += np.bincount(slab.reshape(-1), minlength=num)
    return counts
