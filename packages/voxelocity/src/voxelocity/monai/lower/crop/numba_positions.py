"""Compiled loops that find which voxels of a plane a crop may be centered on. Nothing here holds the GIL.

Planes of labels and of images are separate, so the loops compile once for each kind of number and not for each pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel


@kernel
def mark_binary(label: Any, marks: Any) -> None:
    """Marks foreground, where any channel is not 0, with 1, and background with 0.

    Args:
        label: (c, y, z) of any layout.
        marks: (y, z) int16, filled.
    """
    marks[:] = 0
    for c in range(label.shape[0]):
        for j in range(label.shape[1]):
            for k in range(label.shape[2]):
                marks[j, k] |= np.int16(label[c, j, k] != 0)


@kernel
def mark_classes(label: Any, num_classes: int, marks: Any) -> None:
    """Marks each voxel with its class, or with -1 where it is not a whole number from 0 to `num_classes`.

    Args:
        label: (y, z) of any layout.
        num_classes: how many there are.
        marks: (y, z) int16, filled.
    """
    for j in range(label.shape[0]):
        for k in range(label.shape[1]):
            value = label[j, k]
            marks[j, k] = -1
            if value >= 0 and value < num_classes:
                whole = np.int16(value)
                if value == whole:
                    marks[j, k] = whole


@kernel
def leave_out(image: Any, threshold: Any, first: int, last: int, marks: Any) -> None:
    """Replaces marks from `first` to `last` by -1 where no channel of the image is above the threshold.

    Args:
        image: (c, y, z) of any layout.
        threshold: of the type in which it is to be compared.
        first: the least mark that is replaced.
        last: the greatest.
        marks: (y, z) int16, changed.
    """
    is_above = np.empty(image.shape[2], np.bool_)
    for j in range(image.shape[1]):
        is_above[:] = False
        for c in range(image.shape[0]):
            for k in range(image.shape[2]):
                is_above[k] |= image[c, j, k] > threshold
        # A select and not a branch: in an image of noise every second branch would be mispredicted.
        for k in range(image.shape[2]):
            mark = marks[j, k]
            is_left_out = (not is_above[k]) & (mark >= first) & (mark <= last)
            marks[j, k] = -1 if is_left_out else mark


@kernel
def count(marks: Any, counts: Any) -> None:
    """Counts each mark: `counts` (marks,) int64, filled."""
    counts[:] = 0
    for j in range(marks.shape[0]):
        for k in range(marks.shape[1]):
            if marks[j, k] >= 0:
                counts[marks[j, k]] += 1
