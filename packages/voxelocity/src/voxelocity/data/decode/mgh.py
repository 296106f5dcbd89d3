"""MGH and its gzipped form MGZ, as FreeSurfer writes them: fields in fixed places, all big-endian, then the voxels.

What follows the voxels (times of the scanner, the history of commands, names of labels) is not read.
Source: https://surfer.nmr.mgh.harvard.edu/fswiki/FsTutorial/MghFormat and FreeSurfer's mriio.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.codec import Encoding
from voxelocity.data.decode.gunzip import read_start, read_unpacked
from voxelocity.data.decode.header import (
    HOW_TO_CONVERT,
    Placement,
    ScanHeader,
    check_affine,
    check_shape,
    check_spacing,
)
from voxelocity_observe.core.errors import OutputError, ScanError

_FIELDS = np.dtype([
    ("version", ">i4"), ("shape", ">i4", 4), ("type", ">i4"), ("freedom", ">i4"), ("is_placed", ">i2"),
    ("spacing_mm", ">f4", 3), ("axes", ">f4", (3, 3)), ("center_mm", ">f4", 3),
])  # fmt: skip
_DATA_START = 284
_VERSION, _VERSION_BITS = 1, 8
# The bits above the version: an image, or labels. Others are warps and data on surfaces.
_VOLUMES = (0, 1)
_DTYPES = {0: "uint8", 4: "int16", 1: "int32", 3: "float32", 10: "uint16"}
# Versions of FreeSurfer before 7 do not know uint16.
_WRITTEN = (0, 4, 1, 3)
# Where a header gives no place, FreeSurfer takes these: to the left, down, to the front (nibabel: left, up, back).
_UNPLACED = np.array([[-1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])


def read_mgh_header(path: Path) -> ScanHeader:
    """The checked header of an .mgh or .mgz file. Reads the first bytes only.

    Raises:
        ScanError: the file is missing, or is not MGH, is 2-D or empty, its voxel type is not a plain number, its
            spacing is zero, negative, NaN or implausible, or its affine is singular.
    """
    path = Path(path)
    fields = _parse(path, read_start(path, _DATA_START))
    shape = tuple(int(n) for n in fields["shape"])
    check_shape(path, shape)
    dtype = _DTYPES.get(int(fields["type"]))
    if dtype is None:
        raise ScanError(
            f"decode: {path}: the voxel type has the code {int(fields['type'])}, which is not one of "
            f"{', '.join(f'{code} ({name})' for code, name in sorted(_DTYPES.items()))}; save it with one of these"
        )
    is_placed = int(fields["is_placed"]) > 0
    return ScanHeader(
        path=path,
        grid=Grid.of(shape[:3], _affine(path, fields, is_placed=is_placed)),
        num_channels=shape[3],
        dtype=dtype,
        slope=1.0,
        inter=0.0,
        num_bytes=path.stat().st_size,
        placement=Placement(fields=(), form="patient" if is_placed else "none", forms_apart_mm=0.0),
    )


def read_mgh_voxels(header: ScanHeader, volume: int | None = None) -> Array:
    """The voxels (c, x, y, z) of the file, or of one of its volumes, as nibabel gives them; of bytes a read-only view.

    Raises:
        ScanError: the file is truncated or damaged.
    """
    part = header.part_of(volume, start=_DATA_START)
    num_expected = _DATA_START + header.data_bytes
    data = read_unpacked(header.path, num_expected=num_expected, part=part, warns_of_rest=False)
    dtype = np.dtype(header.dtype)
    x, y, z = header.grid.shape
    stored = data.view(dtype.newbyteorder(">")).reshape((-1, z, y, x))
    voxels: Array = stored.transpose(0, 3, 2, 1).astype(dtype, copy=False)
    return voxels


def encode_mgh(path: Path, grid: Grid, dtype: np.dtype[Any], placement: Placement | None) -> Encoding:
    """An array in an .mgh file, or an .mgz file, which is gzipped; in the first type of MGH that keeps its values.

    Raises:
        OutputError: no type does.
    """
    code = next((code for code in _WRITTEN if np.can_cast(dtype, _DTYPES[code], "safe")), None)
    if code is None:
        raise OutputError(f"decode: {path}: MGH cannot store {dtype}; choose another dtype")
    fields = np.zeros((), dtype=_FIELDS)
    fields["version"], fields["type"], fields["is_placed"] = _VERSION, code, 1
    fields["shape"] = (*grid.shape, 1)
    fields["spacing_mm"] = grid.spacing_mm
    fields["axes"] = (grid.matrix[:3, :3] / grid.spacing_mm).T
    fields["center_mm"] = (grid.matrix @ [*(n / 2 for n in grid.shape), 1.0])[:3]
    return Encoding(
        dtype=np.dtype(_DTYPES[code]).newbyteorder(">"),
        header=fields.tobytes().ljust(_DATA_START, b"\0"),
        is_packed=path.name.lower().endswith(".mgz"),
    )


def _parse(path: Path, start: bytes) -> Any:
    if not start:
        raise ScanError(f"decode: {path}: the file is empty; copy or download it again")
    version = int.from_bytes(start[:4], "big")
    if version & ((1 << _VERSION_BITS) - 1) != _VERSION:
        raise ScanError(
            f"decode: {path}: this is not an MGH or MGZ file (it starts with {start[:4]!r}, not with version 1); "
            f"{HOW_TO_CONVERT}"
        )
    if version >> _VERSION_BITS not in _VOLUMES:
        raise ScanError(
            f"decode: {path}: the header says that it holds a warp, or data on a surface (version {version:#x}); name "
            "the volume"
        )
    if len(start) < _DATA_START:
        raise ScanError(
            f"decode: {path}: the file is truncated: it ends within its header of {_DATA_START} bytes; copy or "
            "download it again"
        )
    return np.frombuffer(start, dtype=_FIELDS, count=1)[0]


def _affine(path: Path, fields: Any, *, is_placed: bool) -> Array:
    """The header gives the place of the voxel at half of the shape, in place of the first one's."""
    steps_mm = fields["spacing_mm"].astype(np.float64) if is_placed else np.ones(3)
    axes = fields["axes"].astype(np.float64) if is_placed else _UNPLACED
    for axis, step_mm in zip("xyz", steps_mm, strict=True):
        check_spacing(path, axis, float(step_mm), "delta")
    affine = np.eye(4)
    affine[:3, :3] = axes.T * steps_mm
    center_mm = fields["center_mm"].astype(np.float64) if is_placed else np.zeros(3)
    affine[:3, 3] = center_mm - affine[:3, :3] @ (fields["shape"][:3] / 2)
    return check_affine(path, affine + 0.0)
