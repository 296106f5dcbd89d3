"""Compiled loops that count and find the voxels of a label which a crop may be centred on. Nothing here holds the GIL.

`label` and `image` are (c, x, y, z) of any layout; an `image` without channels takes no part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def mark_binary(label: Any, first: int, image: Any, threshold: Any, i: int, j: int, marks: Any) -> None:
    """Marks each voxel of the line (i, j): 1 foreground, 0 background, -1 background that does not count.

    Args:
        label: any channel from `first` on that is not 0 makes foreground.
        first: of the channels.
        image: background counts where any channel is above the threshold.
        threshold: a number of a type that compares with the image's as its own.
        i: place along x.
        j: place along y.
        marks: (z,) int16, filled.
    """
    num = label.shape[3]
    for k in range(num):
        marks[k] = 0 if image.shape[0] == 0 else -1
    for c in range(image.shape[0]):
        for k in range(num):
            if image[c, i, j, k] > threshold:
                marks[k] = 0
    for c in range(first, label.shape[0]):
        for k in range(num):
            if label[c, i, j, k] != 0:
                marks[k] = 1


@kernel
def mark_classes(label: Any, num_classes: int, image: Any, threshold: Any, i: int, j: int, marks: Any) -> None:
    """As `mark_binary`: the class of each voxel, from a label of one channel, or -1.

    Args:
        label: voxels that are no whole number from 0 to `num_classes` have no class.
        num_classes: how many there are.
        image: voxels count where any channel is above the threshold.
        threshold: as in `mark_binary`.
        i: place along x.
        j: place along y.
        marks: (z,) int16, filled.
    """
    num = label.shape[3]
    for k in range(num):
        value = label[0, i, j, k]
        marks[k] = -1
        if value >= 0 and value < num_classes:
            whole = np.int64(value)
            if value == whole:
                marks[k] = whole
    if image.shape[0] > 0:
        for k in range(num):
            is_valid = False
            for c in range(image.shape[0]):
                is_valid |= image[c, i, j, k] > threshold
            if not is_valid:
                marks[k] = -1


@kernel
def count(label: Any, is_binary: bool, parameter: int, image: Any, threshold: Any, counts: Any) -> None:
    """Counts the voxels of each plane along x by their mark: `counts` (x, marks) int64, filled.

    Args:
        label: as in the marking.
        is_binary: marked by `mark_binary`, or else by `mark_classes`.
        parameter: `first` or `num_classes` of the marking.
        image: as in the marking.
        threshold: as in the marking.
        counts: filled.
    """
    marks = np.empty(label.shape[3], np.int16)
    counts[:] = 0
    for i in range(label.shape[1]):
        for j in range(label.shape[2]):
            if is_binary:
                mark_binary(label, parameter, image, threshold, i, j, marks)
                num_one, num_left_out = 0, 0
                for k in range(len(marks)):
                    num_one += marks[k] == 1
                    num_left_out += marks[k] == -1
                counts[i, 1] += num_one
                counts[i, 0] += len(marks) - num_one - num_left_out
            else:
                mark_classes(label, parameter, image, threshold, i, j, marks)
                for k in range(len(marks)):
                    if marks[k] >= 0:
                        counts[i, marks[k]] += 1


@kernel
def find(
    label: Any, is_binary: bool, parameter: int, image: Any, threshold: Any, mark: int, plane: int, rank: int
) -> Any:
    """Flat place (C order over x, y, z) of the voxel of this mark that has `rank` of them before it in its plane.

    Args:
        label: as in `count`.
        is_binary: as in `count`.
        parameter: as in `count`.
        image: as in `count`.
        threshold: as in `count`.
        mark: which voxels.
        plane: along x; it holds more than `rank` of them.
        rank: counted from 0.
    """
    marks = np.empty(label.shape[3], np.int16)
    for j in range(label.shape[2]):
        if is_binary:
            mark_binary(label, parameter, image, threshold, plane, j, marks)
        else:
            mark_classes(label, parameter, image, threshold, plane, j, marks)
        for k in range(len(marks)):
            if marks[k] == mark:
                if rank == 0:
                    return (plane * label.shape[2] + j) * label.shape[3] + k
                rank -= 1
    return -1
