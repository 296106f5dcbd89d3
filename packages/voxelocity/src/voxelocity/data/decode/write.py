"""Arrays to NIfTI files: whole or not at all, fast compression, the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import igzip
from nibabel.spatialimages import HeaderDataError

from voxelocity.core.memory_order import in_c_order
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.header import Placement
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import whole_file

# Level 1 packs a label volume nine times smaller than level 0 in the same time; level 3 takes twenty times as long.
_GZIP_LEVEL = 1
_SLAB_BYTES = 8 << 20
_SCANNER_SPACE = 1
_NO_EXTENSIONS = b"\0\0\0\0"
_RIGHT_ANGLE_TOLERANCE = 1e-5


def write_scan(path: Path, array_xyz: Array, like: Grid, *, placement: Placement | None = None) -> None:
    """Writes an array as .nii.gz, .nii or .nrrd (by the file name) on the grid `like`, in millimeters.

    The file appears whole or not at all. NIfTI stores the affine as float32 sform, and also as qform if it is a
    rotation with zooms; NRRD stores it in LPS, with all digits, and is packed. The gzip header carries no time, so
    equal input gives equal bytes.

    Args:
        path: replaced if it exists; its folder must exist.
        array_xyz: (x, y, z), any order in memory; its dtype is kept.
        like: the grid of the array.
        placement: of the file whose grid this is; NIfTI repeats its qform, sform, their codes and the units, so that
            every reader puts both files in the same place.

    Raises:
        OutputError: the name does not end in .nii, .nii.gz or .nrrd, the format cannot hold the array, or the file
            cannot be written.
    """
    path = Path(path)
    name = path.name.lower()
    if not name.endswith((".nii", ".nii.gz", ".nrrd")):
        raise OutputError(f"decode: {path} is not named .nii, .nii.gz or .nrrd; rename it")
    if tuple(array_xyz.shape) != like.shape:
        raise OutputError(
            f"decode: {path}: the array has shape {array_xyz.shape}, its grid {like.shape}; they must match"
        )
    if name.endswith(".nrrd"):
        beginning, header = _nrrd_header(path, like, array_xyz.dtype), b""
    else:
        beginning, header = b"", _nifti_header(path, like, array_xyz.dtype, placement)
    _write(path, beginning, header, [array_xyz], is_packed=not name.endswith(".nii"))


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
    header = _nifti_header(path, like, np.dtype(np.uint8), placement, num_maps=num_maps, scale=scale)
    _write(path, b"", header, maps_xyz, is_packed=True)


def _nifti_header(
    path: Path,
    grid: Grid,
    dtype: np.dtype[Any],
    placement: Placement | None,
    *,
    num_maps: int | None = None,
    scale: float | None = None,
) -> bytes:
    header = nib.Nifti1Header()
    try:
        header.set_data_dtype(dtype)
        header.set_data_shape(grid.shape if num_maps is None else (*grid.shape, num_maps))
    except HeaderDataError as error:
        raise OutputError(
            f"decode: {path}: NIfTI cannot store shape {grid.shape} of {dtype} ({error}); choose another dtype"
        ) from None
    if placement is None or not placement.fields:
        _place(header, grid)
    else:
        for name, values in placement.fields:
            # Another version of NIfTI may hold more digits; the value is repeated.
            header[name] = values[0] if header[name].ndim == 0 else [*values, *header[name][len(values) :]]
    if scale is not None:
        header.set_slope_inter(scale, 0.0)
    header["vox_offset"] = header.sizeof_hdr + len(_NO_EXTENSIONS)
    return bytes(header.binaryblock) + _NO_EXTENSIONS


def _nrrd_header(path: Path, grid: Grid, dtype: np.dtype[Any]) -> bytes:
    """See https://teem.sourceforge.net/nrrd/format.html."""
    if dtype.kind not in "iuf" or dtype.name == "float16":
        raise OutputError(f"decode: {path}: NRRD cannot store {dtype}; choose another dtype")
    lps = grid.matrix
    lps[:2] *= -1.0
    directions, origin = (
        " ".join(f"({','.join(repr(float(value) + 0.0) for value in vector)})" for vector in vectors)
        for vectors in (lps[:3, :3].T, lps[:3, 3:].T)
    )
    fields = {
        "type": {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name),
        "dimension": "3",
        "space": "left-posterior-superior",
        "sizes": " ".join(map(str, grid.shape)),
        "space directions": directions,
        "kinds": "domain domain domain",
        "endian": "little",
        "encoding": "gzip",
        "space origin": origin,
    }
    return "\n".join(["NRRD0004", *(f"{key}: {value}" for key, value in fields.items()), "", ""]).encode()


def _place(header: nib.Nifti1Header, grid: Grid) -> None:
    affine = grid.matrix
    header.set_zooms(grid.spacing_mm)
    header.set_sform(affine, code=_SCANNER_SPACE)
    if _is_rotation_with_zooms(affine):
        header.set_qform(affine, code=_SCANNER_SPACE)
    header.set_xyzt_units("mm")


def _is_rotation_with_zooms(affine: Array) -> bool:
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return bool(np.allclose(directions.T @ directions, np.eye(3), rtol=0.0, atol=_RIGHT_ANGLE_TOLERANCE))


def _write(path: Path, beginning: bytes, header: bytes, volumes: Iterable[Array], *, is_packed: bool) -> None:
    """Writes the beginning as it is, then the header and the volumes."""
    try:
        with whole_file(path) as file:
            file.write(beginning)
            if not is_packed:
                _write_voxels(file, header, volumes)
                return
            with igzip.IGzipFile(filename="", mode="wb", fileobj=file, compresslevel=_GZIP_LEVEL, mtime=0) as packed:
                _write_voxels(packed, header, volumes)
    except OSError as error:
        raise OutputError(
            f"decode: cannot write {path} ({error.strerror}); make space or choose a folder that can be written"
        ) from None


def _write_voxels(file: Any, header: bytes, volumes: Iterable[Array]) -> None:
    file.write(header)
    for volume in volumes:
        thickness = max(1, _SLAB_BYTES // max(1, volume[..., :1].nbytes))
        for start in range(0, volume.shape[2], thickness):
            file.write(in_c_order(volume[..., start : start + thickness].T, volume.dtype).data)
