"""Where each class of a label lies."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from voxelocity.core.volume import Array

Box = tuple[slice, ...]


def class_boxes(label_xyz: Array) -> dict[int, Box]:
    """The smallest box around the voxels of each class but the background, for the classes that occur, ascending."""
    # scipy walks in C order; walking against the order in memory takes eight times as long (48 against 350 ms for
    # 31 million voxels).
    in_memory = sorted(range(label_xyz.ndim), key=lambda axis: -abs(label_xyz.strides[axis]))
    back = np.argsort(in_memory)
    boxes = ndimage.find_objects(label_xyz.transpose(in_memory))
    return {index: tuple(box[i] for i in back) for index, box in enumerate(boxes, start=1) if box is not None}
