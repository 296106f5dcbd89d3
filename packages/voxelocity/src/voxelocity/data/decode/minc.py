"""MINC 1, as BrainWeb and CIVET give it: the file by SciPy (NetCDF 3), what its variables mean by nibabel.

MINC 2 is HDF5, for which no library is always installed. A file is read whole, also for its header.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.minc1 import Minc1File, MincError

from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.gunzip import read_all_unpacked, read_start
from voxelocity.data.decode.header import HOW_TO_CONVERT, Placement, ScanHeader, check_affine, check_memory, check_shape
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt

_MAGIC, _MAGIC_OF_MINC_2 = b"CDF\1", b"\x89HDF"
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError),
    *(OSError, EOFError, MemoryError, MincError, struct.error),
)


def read_minc_header(path: Path) -> ScanHeader:
    """The checked header of a .mnc or .mnc.gz file.

    Raises:
        ScanError: the file is missing, damaged or not MINC 1, or as `read_header`.
    """
    path = Path(path)
    with _open(path) as file:
        names, shape = file._dim_names, tuple(int(n) for n in file.get_data_shape())
        affine = np.asarray(file.get_affine(), dtype=np.float64)
        dtype = np.dtype(file.get_data_dtype())
    # Of an image, the axis that varies fastest comes last.
    num_spatial = sum(name.endswith("space") for name in names)
    if num_spatial != 3 or not all(name.endswith("space") for name in names[-3:]):
        raise ScanError(
            f"decode: {path}: the image has the axes {excerpt(', '.join(map(str, names)))}, and the last three must be "
            f"those of space; {HOW_TO_CONVERT}"
        )
    check_shape(path, (*shape[:-4:-1], *shape[:-3]))
    affine[:3, :3] = affine[:3, 2::-1]
    return ScanHeader(
        path=path,
        grid=Grid.of(shape[:-4:-1], check_affine(path, affine)),
        num_channels=math.prod(shape[:-3]),
        dtype=dtype.newbyteorder("=").name if dtype.kind == "f" else "float32",
        slope=1.0,
        inter=0.0,
        num_bytes=path.stat().st_size,
        placement=Placement(fields=(), form="patient", forms_apart_mm=0.0),
    )


def read_minc_voxels(header: ScanHeader, volume: int | None = None) -> Array:
    """The voxels (c, x, y, z), or those of one volume, as nibabel gives them; whole numbers become float32.

    These are scaled slice by slice.

    Raises:
        ScanError: the file is truncated or damaged, or does not fit into memory.
    """
    check_memory(header.path, 4 * header.data_bytes)
    x, y, z = header.grid.shape
    with _open(header.path) as file, np.errstate(all="ignore"):
        stored: Array = np.asarray(file.get_scaled_data()).astype(header.dtype).reshape((header.num_channels, z, y, x))
    return header.only(stored.transpose(0, 3, 2, 1), volume)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The variables of a file, in memory."""
    from scipy.io import netcdf_file

    start = read_start(path, len(_MAGIC))
    if start == _MAGIC_OF_MINC_2:
        raise ScanError(
            f"decode: {path}: this is a file of MINC 2 (HDF5), which is not read; convert it to MINC 1 by mincconvert, "
            'or in Python, with h5py installed, by nibabel.save(nibabel.load("a.mnc"), "a.nii.gz")'
        )
    if start != _MAGIC:
        raise ScanError(f"decode: {path}: this is not a MINC file (it starts with {start!r}); {HOW_TO_CONVERT}")
    content = read_all_unpacked(path)
    try:
        # Without a map of the file, so that nothing has to be closed while arrays live.
        yield Minc1File(netcdf_file(io.BytesIO(content), mmap=False))
    except ScanError:
        raise
    except _DAMAGE as error:
        raise ScanError(
            f"decode: {path}: the MINC file cannot be read ({excerpt(error)}); it is truncated or damaged; copy or "
            "export it again"
        ) from None
