"""The way back: a prediction on the prepared grid to the scan's own grid, by the trace the preparation left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.data.prepare import crop, orient, resample
from voxelocity.data.prepare.cast import in_c_order

_MAX_CLASSES = 256

Trace = Sequence[Mapping[str, Any]]


def restore_labels(labels_xyz: Array, trace: Trace) -> Array:
    """Class indices (x, y, z) of a prepared volume, on the scan's own grid. The dtype is kept; C-contiguous.

    Exact where the scan was turned and cropped; nearest neighbour where it was resampled. Voxels that were cropped away
    become 0. Without a trace the argument itself is returned where it is C-contiguous.
    """
    for record in reversed(trace):
        labels_xyz = _undo(labels_xyz, record)
    return in_c_order(labels_xyz, labels_xyz.dtype)


def restore_probabilities(probabilities_kxyz: Array, trace: Trace) -> npt.NDArray[np.uint8]:
    """Class indices (x, y, z) uint8 on the scan's own grid, from probabilities (k, x, y, z) of a prepared volume.

    Where the scan was resampled, the probabilities of one class after the other are interpolated linearly, and each
    voxel takes the class of the largest (the lowest index of equals). Beside the argument this needs about two float32
    volumes of the scan's size, however many the classes. Voxels that were cropped away become 0. C-contiguous.

    Args:
        probabilities_kxyz: of any float type; any scores will do whose largest marks the class. At most 256 classes.
        trace: of the prepared volume.
    """
    num_classes = len(probabilities_kxyz)
    assert 1 <= num_classes <= _MAX_CLASSES, f"{num_classes} classes do not fit uint8"
    steps = list(trace)
    if steps and steps[-1]["step"] == resample.STEP:
        positions = resample.positions_back(steps.pop())
        labels = _argmax(probabilities_kxyz, lambda scores: resample.interpolate(scores, positions))
    else:
        labels = _argmax(probabilities_kxyz, lambda scores: scores)
    restored: npt.NDArray[np.uint8] = restore_labels(labels, steps)
    return restored


def _argmax(scores_kxyz: Array, change: Callable[[Array], Array]) -> npt.NDArray[np.uint8]:
    best = change(scores_kxyz[0])
    if np.may_share_memory(best, scores_kxyz):
        best = best.copy()
    labels = np.zeros_like(best, dtype=np.uint8)
    for index in range(1, len(scores_kxyz)):
        scores = change(scores_kxyz[index])
        wins = scores > best
        labels[wins] = index
        np.copyto(best, scores, where=wins)
    return labels


def _undo(labels: Array, record: Mapping[str, Any]) -> Array:
    if record["step"] == orient.STEP:
        return orient.undo_orient(labels, record)
    if record["step"] == crop.STEP:
        return crop.undo_crop(labels, record)
    assert record["step"] == resample.STEP, f"unknown step in the trace: {record['step']}"
    # Half a voxel is rounded up rather than to even, so that every voxel is repeated equally often.
    nearest = [np.floor(axis + 0.5).astype(np.intp) for axis in resample.positions_back(record)]
    limits = [n - 1 for n in labels.shape]
    return labels[np.ix_(*(np.minimum(axis, limit) for axis, limit in zip(nearest, limits, strict=True)))]
