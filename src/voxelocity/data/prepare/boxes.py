"""Where each class of a label lies."""

from __future__ import annotations

import numpy as np

from voxelocity.core.volume import Array

Box = tuple[slice, ...]


def class_boxes(label_xyz: Array) -> dict[int, Box]:
    """The smallest box around the voxels of each class except the background, for the classes that occur, ascending."""
    # Imported here because a run on a warm cache never needs it: importing it takes 0.2 s.
    from scipy import ndimage

    # SciPy iterates in C order; going against the order in memory takes eight times as long (350 ms instead of 48 for
    # 31 million voxels).
    in_memory = sorted(range(label_xyz.ndim), key=lambda axis: -abs(label_xyz.strides[axis]))
    back = np.argsort(in_memory)
    ordered = label_xyz.transpose(in_memory)
    # SciPy checks one voxel at a time, while maxima are vectorized. Limiting the box first cut 59 ms to 23 for a label
    # of six organs in 34 million voxels, and 48 ms to 1.2 for one with a small tumor.
    around = _box_of_all(ordered)
    if around is None:
        return {}
    starts = [part.start for part in around]
    boxes: dict[int, Box] = {}
    for index, box in enumerate(ndimage.find_objects(ordered[around]), start=1):
        if box is not None:
            moved = [slice(part.start + start, part.stop + start) for part, start in zip(box, starts, strict=True)]
            boxes[index] = tuple(moved[i] for i in back)
    return boxes


def _box_of_all(label_abc: Array) -> Box | None:
    """The smallest box around everything that is not 0, None if everything is; fastest if axis c is contiguous."""
    first = _ends(label_abc.max(axis=(1, 2)))
    if first is None:
        return None
    seen_bc = label_abc[first].max(axis=0)
    second, third = _ends(seen_bc.max(axis=1)), _ends(seen_bc.max(axis=0))
    assert second is not None, "what is in a plane is in one of its rows"
    assert third is not None, "and columns"
    return first, second, third


def _ends(line: Array) -> slice | None:
    """From the first value that is not 0 to the last."""
    found = np.flatnonzero(line)
    return slice(int(found[0]), int(found[-1]) + 1) if found.size else None
