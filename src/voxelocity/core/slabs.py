"""Walks a large array in pieces, so that temporary arrays stay small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voxelocity.core.volume import Array


def slabs(*arrays: Array, max_values: int) -> Iterator[tuple[Array, ...]]:
    """Matching pieces of arrays of one shape, cut along the axes that are slowest in the first array's memory.

    Args:
        arrays: of one shape.
        max_values: per piece; the pieces may have fewer axes than the arrays.
    """
    first = arrays[0]
    if first.size <= max_values:
        yield arrays
        return
    slow = max(range(first.ndim), key=lambda axis: abs(first.strides[axis]) if first.shape[axis] > 1 else -1)
    moved = tuple(np.moveaxis(array, slow, 0) for array in arrays)
    thickness = max_values // moved[0][0].size
    if thickness == 0:
        for planes in zip(*moved, strict=True):
            yield from slabs(*planes, max_values=max_values)
        return
    for start in range(0, len(moved[0]), thickness):
        yield tuple(array[start : start + thickness] for array in moved)
