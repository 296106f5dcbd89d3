"""Brings a prediction from the prepared grid back to the scan's own grid, using the trace of the preparation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.cases import MAX_BYTE_CLASSES, MAX_CLASSES, index_dtype
from voxelocity.core.memory_order import in_c_order
from voxelocity.core.native import has_loops
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.data.prepare import crop, orient, resample
from voxelocity.data.prepare.interpolate import Positions, neighbors

# Voxels of the scan processed at a time: 1 MiB as float32, so that scores and the best so far stay in the caches.
_SLAB_VALUES = 1 << 18
# So that the blocks of the compiled loop are whole.
_LEAST_PLANES = 8
# Class numbers that were interpolated are rounded, halves down, whatever the rounding of their sum.
_HALF = 0.5 + 1e-4

_LABELS_STEP = "labels"

Trace = Sequence[Mapping[str, Any]]


def restore_labels(labels_xyz: Array, trace: Trace) -> Array:
    """Class indices (x, y, z) of a prepared volume, on the scan's own grid. The dtype is kept; C-contiguous.

    Exact if the scan was only reoriented and cropped. If it was resampled, each voxel takes its nearest neighbor or,
    if the record says so, the interpolated class number, rounded. Voxels that were cropped away become 0. Without a
    trace, returns the argument itself if it is C-contiguous.
    """
    for record in reversed(trace):
        labels_xyz = _undo(labels_xyz, record)
    return in_c_order(labels_xyz, labels_xyz.dtype)


def restore_scores(scores_xyz: Array, trace: Trace) -> Array:
    """Scores (x, y, z) of one class of a prepared volume, on the scan's own grid, 0 where it was cropped away.

    Interpolated linearly, as float32, if the scan was resampled; unchanged otherwise.
    """
    steps = [record for record in trace if record["step"] != _LABELS_STEP]
    if is_resampled(steps):
        scores_xyz = resample.interpolate(scores_xyz, resample.positions_back(steps.pop()))
    for record in reversed(steps):
        scores_xyz = _undo(scores_xyz, record)
    return scores_xyz


def restore_probabilities(probabilities_kxyz: Array, trace: Trace) -> Array:
    """Class indices (x, y, z) on the scan's own grid, from probabilities (k, x, y, z) of a prepared volume.

    As `Restoration`, from one box.
    """
    x, y, z = probabilities_kxyz.shape[1:]
    restoration = Restoration(trace, (x, y, z))
    restoration.add(probabilities_kxyz)
    return restoration.result()


class Restoration:
    """Class indices on the scan's own grid, from the scores of a prepared volume, taken box by box.

    If the scan was resampled, the scores of each class are interpolated linearly, and each voxel takes the class with
    the largest (the lowest index of equals), or, with overlapping classes, that of the last score above 0. Besides a
    box and the result this needs a few MiB per thread, whatever the number of classes. Voxels that were cropped away
    become 0. The GIL is free most of the time.

    Args:
        trace: of the prepared volume.
        shape: of the prepared volume.
        num_threads: pieces of a box made at once.
        is_softmax: whether the scores are logits whose probabilities are interpolated.
        region_order: for overlapping classes, the class index of each score; the scores must then be logits.
        rounds_to_float16: whether interpolated scores are rounded before they are compared, as in nnU-Net; slower.
        engine: as in `PrepareConfig`.
    """

    def __init__(
        self,
        trace: Trace,
        shape: Index3,
        *,
        num_threads: int = 1,
        is_softmax: bool = False,
        region_order: Sequence[int] = (),
        rounds_to_float16: bool = False,
        engine: resample.ResampleEngine = "auto",
    ) -> None:
        self._shape, self._steps, self._num_threads = shape, list(trace), num_threads
        self._order, self._is_softmax = np.array(region_order, dtype=np.uint8), is_softmax
        self._rounds = rounds_to_float16
        self._is_compiled = engine == "auto" and has_loops() and not rounds_to_float16
        self._positions: tuple[Positions, ...] = tuple(np.arange(n, dtype=np.float64) for n in shape)
        if is_resampled(trace):
            self._positions = resample.positions_back(self._steps.pop())
        self._labels: Array | None = None

    def add(self, scores_kxyz: Array, *, start: Index3 = (0, 0, 0), weights_xyz: Array | None = None) -> None:
        """Fills every voxel of the scan whose neighbors lie in a box, other than those in its first planes alone.

        Args:
            scores_kxyz: of any float type, finite; any scores whose largest marks the class are allowed. At most
                65,535 of them. Boxes may come in any order. Along each axis, a box begins with the last plane of the
                box before, if there is one.
            start: of the box in the prepared volume.
            weights_xyz: float32, positive: the scores are sums that are divided by them first.
        """
        num_scores = len(scores_kxyz)
        assert 1 <= num_scores <= MAX_CLASSES, f"{num_scores} classes do not fit uint16"
        rows = self.reach(start, scores_kxyz.shape[1:])
        positions = tuple(axis[here] - first for axis, here, first in zip(self._positions, rows, start, strict=True))
        if self._labels is None:
            self._labels = np.zeros(self.shape, dtype=index_dtype(num_scores))
        target = self._labels[rows]
        if target.size:
            is_compiled = self._is_compiled and num_scores <= MAX_BYTE_CLASSES
            (self._fill_compiled if is_compiled else self._fill_plain)(scores_kxyz, weights_xyz, positions, target)

    @property
    def shape(self) -> Index3:
        """Of the classes before the steps ahead of the resampling are undone."""
        x, y, z = (len(axis) for axis in self._positions)
        return (x, y, z)

    def reach(self, start: Index3, shape: Sequence[int]) -> tuple[slice, ...]:
        """The voxels of `shape` that `add` fills from a box."""
        rows = []
        for axis, (first, length) in enumerate(zip(start, shape, strict=True)):
            _, above, _ = neighbors(self._positions[axis], self._shape[axis])
            # What lies in the first plane was filled with the box before.
            known = 0 if first == 0 else first + 1
            begin, end = np.searchsorted(above, [known, first + length])
            rows.append(slice(int(begin), int(end)))
        return tuple(rows)

    def neighbors(self, axis: int) -> tuple[npt.NDArray[np.intp], Array]:
        """For each of the voxels of `shape` along an axis, the one of the volume before it, and the next one's weight.

        The weight is float32, and 0 where there is no next one.
        """
        below, _, weight = neighbors(self._positions[axis], self._shape[axis])
        return below, weight

    def _fill_compiled(
        self, scores: Array, weights: Array | None, positions: tuple[Positions, ...], target: Array
    ) -> None:
        from voxelocity.data.prepare import native_restore

        classes = np.empty(scores.shape[1:], dtype=np.uint8)

        def classify(part: slice) -> None:
            if len(self._order):
                native_restore.signs_of(scores[:, part], classes[part], self._order)
            else:
                native_restore.largest_class(scores[:, part], classes[part])

        def fill(part: slice) -> None:
            native_restore.fill_classes(
                scores, weights, classes, (positions[0][part], *positions[1:]), target[part], self._order,
                is_softmax=self._is_softmax,
            )  # fmt: skip

        self._in_parts(classify, scores.shape[1:])
        self._in_parts(fill, target.shape)

    def _fill_plain(
        self, scores: Array, weights: Array | None, positions: tuple[Positions, ...], target: Array
    ) -> None:
        def fill(part: slice) -> None:
            along = positions[0][part]
            # The planes of the box between which these lie.
            first, stop = int(along.min()), int(along.max()) + 2
            box = scores[:, first:stop], None if weights is None else weights[first:stop]
            planes = _planes(*box, is_softmax=self._is_softmax)
            within = (along - first, *positions[1:])
            fill_classes_plain(planes, within, target[part], self._order, rounds=self._rounds)

        self._in_parts(fill, target.shape)

    def _in_parts(self, do: Callable[[slice], None], shape: tuple[int, ...]) -> None:
        """Calls `do` with slices of the first axis, in threads."""
        thickness = max(_LEAST_PLANES, _SLAB_VALUES // max(1, shape[1] * shape[2]))
        parts = [slice(first, first + thickness) for first in range(0, shape[0], thickness)]
        if self._num_threads > 1 and len(parts) > 1:
            with ThreadPoolExecutor(max_workers=self._num_threads) as pool:
                list(pool.map(do, parts))
        else:
            for part in parts:
                do(part)

    def result(self, also: npt.NDArray[np.uint8] | None = None) -> Array:
        """(x, y, z) of the type `index_dtype`, C-contiguous, once all boxes were added.

        Args:
            also: classes of `shape` from boxes that were filled elsewhere; 0 in all others.
        """
        labels = self._labels
        if also is not None:
            # Every voxel is filled from one box and is 0 before.
            labels = also if labels is None else np.maximum(labels, also)
        return restore_labels(np.zeros(self.shape, dtype=np.uint8) if labels is None else labels, self._steps)


def labels_record(kept_largest: Sequence[int] = ()) -> dict[str, Any]:
    """The last record in the trace of a volume whose classes are brought back, not their scores.

    Args:
        kept_largest: classes of which only the largest component is brought back.
    """
    return {"step": _LABELS_STEP, "kept_largest": list(kept_largest)}


def kept_largest(trace: Trace) -> tuple[int, ...]:
    """The classes of which only the largest component is brought back."""
    return tuple(trace[-1].get("kept_largest", ())) if trace else ()


def is_resampled(trace: Trace) -> bool:
    """Whether restoring interpolates, which needs probabilities. Otherwise the class of each voxel is enough."""
    return len(trace) > 0 and trace[-1]["step"] == resample.STEP


def _planes(scores_kxyz: Array, weights_xyz: Array | None, *, is_softmax: bool) -> Iterator[Array]:
    """The scores of each class, or its probabilities, one class at a time, however many there are."""

    def plane(index: int) -> Array:
        found: Array = scores_kxyz[index] if weights_xyz is None else scores_kxyz[index] / weights_xyz
        return found

    num = len(scores_kxyz)
    if not is_softmax:
        yield from map(plane, range(num))
        return
    largest = functools.reduce(np.maximum, map(plane, range(num)))
    total = functools.reduce(np.add, (np.exp(plane(index) - largest) for index in range(num)))
    for index in range(num):
        yield np.exp(plane(index) - largest) / total


def fill_classes_plain(
    scores_kxyz: Iterable[Array],
    positions: tuple[Positions, ...],
    target_xyz: Array,
    order: Array,
    *,
    rounds: bool = False,
) -> None:
    """Interpolates every score, and writes the class of each voxel: the slow reference.

    Args:
        scores_kxyz: (x, y, z) of each class, any float type.
        positions: of the target's voxels along each axis.
        target_xyz: of the type `index_dtype`, zeros.
        order: (k,) uint8, the class of each channel, for overlapping classes; empty otherwise.
        rounds: whether interpolated scores are rounded to float16.
    """

    def interpolated(scores_xyz: Array) -> Array:
        scores = resample.interpolate(scores_xyz, positions, engine="auto" if rounds else "numpy")
        return scores.astype(np.float16).astype(np.float32) if rounds else scores

    best: Array | None = None
    for index, plane in enumerate(scores_kxyz):
        scores = interpolated(plane)
        if len(order):
            target_xyz[scores > 0.0] = order[index]
        elif best is None:
            # A copy, because nothing is interpolated where all positions are whole.
            best = np.array(scores)
        else:
            wins = scores > best
            target_xyz[wins] = index
            np.copyto(best, scores, where=wins)


def _undo(labels: Array, record: Mapping[str, Any]) -> Array:
    if record["step"] == orient.STEP:
        return orient.undo_orient(labels, record)
    if record["step"] == _LABELS_STEP:
        return labels
    if record["step"] == crop.STEP:
        return crop.undo_crop(labels, record)
    assert record["step"] == resample.STEP, f"unknown step in the trace: {record['step']}"
    if record.get("interpolates_labels"):
        values = resample.interpolate(labels, resample.positions_back(record))
        return np.ceil(values - np.float32(_HALF)).astype(labels.dtype)
    # Half a voxel is rounded up, not to even, so that every voxel is repeated equally often.
    nearest = [np.floor(axis + 0.5).astype(np.intp) for axis in resample.positions_back(record)]
    limits = [n - 1 for n in labels.shape]
    return labels[np.ix_(*(np.minimum(axis, limit) for axis, limit in zip(nearest, limits, strict=True)))]
