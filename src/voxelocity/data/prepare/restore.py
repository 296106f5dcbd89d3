"""Brings a prediction from the prepared grid back to the scan's own grid, using the trace of the preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.data.prepare import crop, orient, resample
from voxelocity.data.prepare.cast import in_c_order
from voxelocity.data.prepare.interpolate import Positions

_MAX_CLASSES = 256
# Voxels of the scan processed at a time: 1 MiB as float32, so that scores and the best so far stay in the caches.
_SLAB_VALUES = 1 << 18

Trace = Sequence[Mapping[str, Any]]


def restore_labels(labels_xyz: Array, trace: Trace) -> Array:
    """Class indices (x, y, z) of a prepared volume, on the scan's own grid. The dtype is kept; C-contiguous.

    Exact if the scan was only reoriented and cropped; nearest neighbor if it was resampled. Voxels that were cropped
    away become 0. Without a trace, returns the argument itself if it is C-contiguous.
    """
    for record in reversed(trace):
        labels_xyz = _undo(labels_xyz, record)
    return in_c_order(labels_xyz, labels_xyz.dtype)


def restore_probabilities(probabilities_kxyz: Array, trace: Trace, *, num_threads: int = 1) -> npt.NDArray[np.uint8]:
    """Class indices (x, y, z) uint8 on the scan's own grid, from probabilities (k, x, y, z) of a prepared volume.

    If the scan was resampled, the probabilities of each class are interpolated linearly, slab by slab of the scan, and
    each voxel takes the class with the largest (the lowest index of equals). Besides the argument and the result this
    needs a few MiB per thread, whatever the number of classes. Voxels that were cropped away become 0. C-contiguous.
    The GIL is free most of the time.

    Args:
        probabilities_kxyz: of any float type, finite; any scores whose largest marks the class are allowed. At most 256
            classes.
        trace: of the prepared volume.
        num_threads: slabs made at once.
    """
    num_classes = len(probabilities_kxyz)
    assert 1 <= num_classes <= _MAX_CLASSES, f"{num_classes} classes do not fit uint8"
    steps = list(trace)
    positions = None
    if is_resampled(steps):
        positions = resample.positions_back(steps.pop())
    shape = probabilities_kxyz.shape[1:] if positions is None else tuple(len(axis) for axis in positions)
    labels = np.zeros(shape, dtype=np.uint8)

    def fill(start: int) -> None:
        _fill_argmax(probabilities_kxyz, positions, slice(start, start + thickness), labels)

    thickness = max(1, _SLAB_VALUES // (shape[1] * shape[2]))
    starts = range(0, shape[0], thickness)
    if num_threads > 1 and len(starts) > 1:
        with ThreadPoolExecutor(max_workers=num_threads) as pool:
            list(pool.map(fill, starts))
    else:
        for start in starts:
            fill(start)
    restored: npt.NDArray[np.uint8] = restore_labels(labels, steps)
    return restored


def is_resampled(trace: Trace) -> bool:
    """Whether restoring interpolates, which needs probabilities. Otherwise the class of each voxel is enough."""
    return len(trace) > 0 and trace[-1]["step"] == resample.STEP


def _fill_argmax(
    scores_kxyz: Array, positions: tuple[Positions, ...] | None, slab: slice, labels: npt.NDArray[np.uint8]
) -> None:
    def scores_of(index: int) -> Array:
        if positions is None:
            return scores_kxyz[index, slab]
        return resample.interpolate(scores_kxyz[index], (positions[0][slab], *positions[1:]))

    target = labels[slab]
    best = scores_of(0)
    if positions is None:
        best = best.copy()
    for index in range(1, len(scores_kxyz)):
        scores = scores_of(index)
        wins = scores > best
        target[wins] = index
        np.copyto(best, scores, where=wins)


def _undo(labels: Array, record: Mapping[str, Any]) -> Array:
    if record["step"] == orient.STEP:
        return orient.undo_orient(labels, record)
    if record["step"] == crop.STEP:
        return crop.undo_crop(labels, record)
    assert record["step"] == resample.STEP, f"unknown step in the trace: {record['step']}"
    # Half a voxel is rounded up, not to even, so that every voxel is repeated equally often.
    nearest = [np.floor(axis + 0.5).astype(np.intp) for axis in resample.positions_back(record)]
    limits = [n - 1 for n in labels.shape]
    return labels[np.ix_(*(np.minimum(axis, limit) for axis, limit in zip(nearest, limits, strict=True)))]
