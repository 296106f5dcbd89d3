"""Linear interpolation in NumPy, along one axis at a time: of images, and of labels by the shares of their classes.

Resampling and its inverse both use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.data.prepare.foreground import Box, class_boxes

Positions = npt.NDArray[np.float64]

# A pass is memory-bound: pieces of 256 KiB stay in the second-level cache (33 ms instead of 60 for 31 million voxels),
# and lines of this many values are long enough to be added one by one without temporary arrays (59 ms instead of 190).
_PIECE_VALUES = 1 << 16
_LONG_LINE_VALUES = 1 << 12


def sample_positions(num_before: int, num_after: int, step_voxel: float) -> Positions:
    """Where the samples of a new axis lie on an old one, in voxels of the old; those outside move to its border.

    Both axes share their center: sample j lies at (j - (num_after - 1) / 2) * step_voxel + (num_before - 1) / 2.
    """
    centered = np.arange(num_after, dtype=np.float64) - (num_after - 1) / 2
    return np.clip(centered * step_voxel + (num_before - 1) / 2, 0.0, num_before - 1.0)


def first_positions(num_before: int, num_after: int, step_voxel: float) -> Positions:
    """As `sample_positions`, but the axes share the center of their first voxel, as in MONAI's `Spacing`."""
    return np.clip(np.arange(num_after, dtype=np.float64) * step_voxel, 0.0, num_before - 1.0)


def nearest_positions(num_before: int, num_after: int) -> Positions:
    """The whole positions on an old axis that are nearest to the samples of a new one of the same extent.

    Of two, the higher, rounded as in nnU-Net v2, whose thick slices are repeated or left out.
    """
    positions = num_before / num_after * (np.arange(num_after, dtype=np.float64) + 0.5) - 0.5
    return np.clip(np.floor(positions + 0.5), 0.0, num_before - 1.0)


def sample_along(array: Array, positions: Positions, axis: int) -> npt.NDArray[np.float32]:
    """The array as float32, linearly interpolated at `positions` of one axis. The order in memory is kept.

    Args:
        array: any number of axes and any number type. Read piece by piece if it is contiguous in some order of its
            axes, else copied once.
        positions: ascending or not, within 0 and the last index.
        axis: the one to interpolate along.
    """
    in_memory = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
    ordered = array.transpose(in_memory)
    place = in_memory.index(axis)
    outer, inner = math.prod(ordered.shape[:place]), math.prod(ordered.shape[place + 1 :])
    new_shape = (*ordered.shape[:place], len(positions), *ordered.shape[place + 1 :])
    out = np.empty(new_shape, dtype=np.float32)
    source = ordered.reshape(outer, array.shape[axis], inner)
    target = out.reshape(outer, len(positions), inner)
    if inner >= _LONG_LINE_VALUES:
        _fill_line_by_line(source, positions, target)
    else:
        _fill_piece_by_piece(source, positions, target)
    return out.transpose(np.argsort(in_memory))


def _fill_line_by_line(source: Array, positions: Positions, target: npt.NDArray[np.float32]) -> None:
    below, above, weight = neighbors(positions, source.shape[1])
    for lines, new_lines in zip(source, target, strict=True):
        for j, line in enumerate(new_lines):
            np.subtract(lines[above[j]], lines[below[j]], out=line, dtype=np.float32)
            line *= weight[j]
            line += lines[below[j]]


def _fill_piece_by_piece(source: Array, positions: Positions, target: npt.NDArray[np.float32]) -> None:
    below, above, weight = neighbors(positions, source.shape[1])
    thickness = max(1, _PIECE_VALUES // max(1, target.shape[1] * target.shape[2]))
    for start in range(0, source.shape[0], thickness):
        piece = source[start : start + thickness]
        low = piece.take(below, axis=1).astype(np.float32, copy=False)
        step = piece.take(above, axis=1).astype(np.float32, copy=False)
        step -= low
        step *= weight[:, np.newaxis]
        np.add(low, step, out=target[start : start + thickness])


def neighbors(positions: Positions, num: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Array]:
    """The two samples of an axis of `num` around each position, and the weight of the second in float32."""
    # Whole positions, including the last one, have weight 0, so that they give exactly the sample itself.
    below = np.clip(np.floor(positions).astype(np.intp), 0, num - 1)
    above = np.minimum(below + 1, num - 1)
    return below, above, (positions - below).astype(np.float32)


def resample_label(label_xyz: Array, positions: tuple[Positions, ...]) -> Array:
    """Class indices at the given positions of (x, y, z): the class with the largest share, the lower one of equals.

    The same as interpolating the indicator of every class and taking the argmax, in less time and memory: each class is
    interpolated only around its own voxels, and the background's share is what the others leave. C-contiguous.
    """
    shape = tuple(len(axis) for axis in positions)
    labels = np.zeros(shape, dtype=np.uint16 if label_xyz.dtype == np.uint16 else np.uint8)
    boxes = class_boxes(label_xyz)
    if not boxes:
        return labels
    around = _reach(_union(boxes.values()), positions)
    inside = labels[around]
    best = np.zeros(inside.shape, dtype=np.float32)
    total = np.zeros(inside.shape, dtype=np.float32)
    for index, box in boxes.items():
        reach = _reach(box, positions)
        if any(part.stop <= part.start for part in reach):
            continue
        share = _share(label_xyz, index, reach, positions)
        part = tuple(slice(r.start - a.start, r.stop - a.start) for r, a in zip(reach, around, strict=True))
        total[part] += share
        wins = share > best[part]
        np.copyto(best[part], share, where=wins)
        inside[part][wins] = index
    np.subtract(1.0, total, out=total)
    inside[total >= best] = 0
    return labels


def _share(label: Array, index: int, reach: Box, positions: tuple[Positions, ...]) -> Array:
    """Interpolated indicator of one class at the samples `reach`, from only the voxels that they need."""
    wanted = [axis[part] for axis, part in zip(positions, reach, strict=True)]
    starts = [int(axis.min()) for axis in wanted]
    box = tuple(slice(a, int(axis.max()) + 2) for a, axis in zip(starts, wanted, strict=True))
    share: Array = (label[box] == index).astype(np.float32)
    for axis, start in enumerate(starts):
        share = sample_along(share, wanted[axis] - start, axis)
    return share


def _reach(box: Box, positions: tuple[Positions, ...]) -> Box:
    """The samples that lie in a box of voxels or less than one voxel outside it."""
    return tuple(
        slice(int(np.searchsorted(axis, part.start - 1, "right")), int(np.searchsorted(axis, part.stop, "left")))
        for part, axis in zip(box, positions, strict=True)
    )


def _union(boxes: Iterable[Box]) -> Box:
    return tuple(slice(min(p.start for p in parts), max(p.stop for p in parts)) for parts in zip(*boxes, strict=True))
