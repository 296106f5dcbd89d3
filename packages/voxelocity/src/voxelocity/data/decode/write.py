"""Arrays to files: whole or not at all, fast compression, the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip

from voxelocity.core.memory_order import in_c_order
from voxelocity.core.scan_formats import in_words
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.codec import Encoding
from voxelocity.data.decode.formats import CODECS
from voxelocity.data.decode.header import Placement
from voxelocity.data.decode.nifti import encode_nifti
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import whole_file

# Level 1 packs a label volume nine times smaller than level 0 in the same time; level 3 takes twenty times as long.
_GZIP_LEVEL = 1
_SLAB_BYTES = 8 << 20


def write_scan(path: Path, array_xyz: Array, like: Grid, *, placement: Placement | None = None) -> None:
    """Writes an array on the grid `like`, in millimeters, in the format that the file name says.

    The file appears whole or not at all. The gzip header carries no time, so equal input gives equal bytes.

    Args:
        path: replaced if it exists; its folder must exist.
        array_xyz: (x, y, z), any order in memory; its dtype is kept, or is one that keeps all of its values.
        like: the grid of the array.
        placement: of the file whose grid this is; NIfTI repeats its qform, sform, their codes and the units, so that
            every reader puts both files in the same place.

    Raises:
        OutputError: no format that is written has such a name, the format cannot hold the array, or the file cannot be
            written.
    """
    path = Path(path)
    written = {ending: codec.encode for codec in CODECS if codec.encode for ending in codec.format.written}
    encode = next((encode for ending, encode in written.items() if path.name.lower().endswith(ending)), None)
    if encode is None:
        raise OutputError(f"decode: {path} is not named {in_words(written)}; rename it")
    if tuple(array_xyz.shape) != like.shape:
        raise OutputError(
            f"decode: {path}: the array has shape {array_xyz.shape}, its grid {like.shape}; they must match"
        )
    _write(path, encode(path, like, array_xyz.dtype, placement), [array_xyz])


def write_maps(
    path: Path, maps_xyz: Iterable[Array], num_maps: int, like: Grid, *, scale: float, placement: Placement | None
) -> None:
    """Writes volumes one after the other as the fourth axis of a .nii.gz file, so that one at a time is in memory.

    Args:
        path: replaced if it exists; its folder must exist.
        maps_xyz: uint8 (x, y, z) each, on the grid `like`.
        num_maps: how many these are.
        like: their grid.
        scale: readers multiply the stored values by it.
        placement: as `write_scan`.

    Raises:
        OutputError: the file cannot be written.
    """
    encoding = encode_nifti(path, like, np.dtype(np.uint8), placement, num_maps=num_maps, scale=scale)
    _write(path, encoding, maps_xyz)


def _write(path: Path, encoding: Encoding, volumes: Iterable[Array]) -> None:
    try:
        with whole_file(path) as file:
            file.write(encoding.plain)
            if not encoding.is_packed:
                _write_voxels(file, encoding, volumes)
                return
            with igzip.IGzipFile(filename="", mode="wb", fileobj=file, compresslevel=_GZIP_LEVEL, mtime=0) as packed:
                _write_voxels(packed, encoding, volumes)
    except OSError as error:
        raise OutputError(
            f"decode: cannot write {path} ({error.strerror}); make space or choose a folder that can be written"
        ) from None


def _write_voxels(file: Any, encoding: Encoding, volumes: Iterable[Array]) -> None:
    file.write(encoding.header)
    for volume in volumes:
        thickness = max(1, _SLAB_BYTES // max(1, volume[..., :1].nbytes))
        for start in range(0, volume.shape[2], thickness):
            file.write(in_c_order(volume[..., start : start + thickness].T, encoding.dtype).data)
