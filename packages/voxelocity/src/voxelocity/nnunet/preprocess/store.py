"""The files of a preprocessed case: two of Blosc2, in nnU-Net's chunks and blocks, and one of notes.

Written after `comp_blosc2_params` and `nnUNetDatasetBlosc2` of nnU-Net 2.8.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.nnunet.preprocess.case import MadeCase
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.whole_file import put_in_place

NOTES = ".pkl"
"""Written last: a case with it is complete."""
ENDINGS = (".b2nd", "_seg.b2nd", NOTES)
_MOST_BLOCK_BYTES, _MOST_CHUNK_BYTES = 128 << 10, 6 << 20
_PATCH_SHARE = 1.5
_LEVEL = 5
_Shape = list[int]


def need_blosc2() -> Any:
    """The package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import blosc2
    except ImportError:
        raise ConfigError(
            "nnunet: nnU-Net keeps its cases in files of Blosc2, and blosc2 is not installed; pip install blosc2"
        ) from None
    return blosc2


def store_case(case: MadeCase, folder: Path, identifier: str) -> None:
    """Writes the three files of a case.

    Raises:
        OSError: one cannot be written.
    """
    for array, ending in ((case.image, ENDINGS[0]), (case.label, ENDINGS[1])):
        _store(array, folder / f"{identifier}{ending}", case.plan.keys.patch_size)
    put_in_place(folder / f"{identifier}{NOTES}", pickle.dumps(case.properties), is_durable=False)


def _store(array: Array, path: Path, patch: Sequence[int]) -> None:
    blosc2 = need_blosc2()
    block, chunk = block_and_chunk(array.shape, patch, array.itemsize)
    settings = {"codec": blosc2.Codec.LZ4HC, "clevel": _LEVEL, "nthreads": 1}
    settings["filters"] = [_smaller_filter(array, block, chunk, settings)]
    # What an interrupted run left.
    path.unlink(missing_ok=True)
    blosc2.asarray(np.ascontiguousarray(array), urlpath=str(path), chunks=chunk, blocks=block, cparams=settings)


def _smaller_filter(array: Array, block: Sequence[int], chunk: Sequence[int], settings: dict[str, Any]) -> Any:
    """Whether bytes of equal place are put together first: what makes a chunk in the middle smaller; if equal, not."""
    blosc2 = need_blosc2()
    shape = [min(c, n) for c, n in zip(chunk, array.shape, strict=True)]
    middle = tuple(slice((n - s) // 2, (n - s) // 2 + s) for n, s in zip(array.shape, shape, strict=True))
    piece = np.ascontiguousarray(array[middle])
    blocks = tuple(min(b, s) for b, s in zip(block, shape, strict=True))
    found = {
        filter: blosc2.asarray(
            piece, chunks=tuple(shape), blocks=blocks, cparams={**settings, "filters": [filter]}
        ).schunk.cbytes
        for filter in (blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE)
    }
    return min(found, key=lambda filter: int(found[filter]))


def block_and_chunk(
    shape: Sequence[int], patch: Sequence[int], itemsize: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes (1, x, y, z) of nnU-Net's blocks and chunks, which suit reads of patches.

    Args:
        shape: (c, x, y, z) of the array.
        patch: along (x, y, z), or (y, z) of a 2-D network.
        itemsize: bytes of a value.
    """
    sides, is_flat = list(shape[1:]), len(patch) == 2
    patch = [1, *patch] if is_flat else list(patch)
    most = [max(1, min(n, math.floor(_PATCH_SHARE * p))) for n, p in zip(sides, patch, strict=True)]
    block = [min(1 << (p - 1).bit_length(), n) for p, n in zip(patch, sides, strict=True)]
    while math.prod(block) * itemsize > _MOST_BLOCK_BYTES:
        # The axis with most of what a chunk may have, the last one of equals; to the next smaller power of two.
        axis = max((axis for axis in range(3) if block[axis] > 1), key=lambda axis: (block[axis] / most[axis], axis))
        block[axis] = 1 << ((block[axis] - 1).bit_length() - 1)
    chunk = list(block)
    while larger := _larger_chunks(chunk, block, sides, most, patch, is_flat=is_flat, itemsize=itemsize):
        # The axis with least of it, the longer one of equals.
        axis = min(larger, key=lambda axis: (chunk[axis] / most[axis], -sides[axis], axis))
        chunk[axis] = larger[axis]
    return (1, *block), (1, *chunk)


def _larger_chunks(
    chunk: _Shape, block: _Shape, sides: _Shape, most: _Shape, patch: _Shape, *, is_flat: bool, itemsize: int
) -> dict[int, int]:
    """The sides that a chunk may have after one more block along an axis, by axis."""
    found = {}
    for axis in range(3):
        if (is_flat and axis == 0) or patch[axis] == 1 or chunk[axis] >= min(sides[axis], most[axis]):
            continue
        side = min(chunk[axis] + block[axis], sides[axis], most[axis])
        if math.prod(chunk) // chunk[axis] * side * itemsize <= _MOST_CHUNK_BYTES:
            found[axis] = side
    return found
