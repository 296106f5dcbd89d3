"""Reads and checks a NIfTI header before any voxel is read. nibabel parses the format; the checks are ours."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError

from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.gunzip import read_start

HOW_TO_CONVERT = (
    "convert it to .nii.gz: DICOM with dcm2niix, other formats with 3D Slicer or SimpleITK (docs/data-sets.md)"
)
_NIFTI1_BYTES, _NIFTI2_BYTES = 348, 540
# The four bytes after the header say whether extensions follow; voxels cannot start before their end.
_EXTENSION_FLAG_BYTES = 4
_MAX_AXES = 7
_MAX_VOXELS = 2**48
_MAX_VALUE_BYTES = 8
_LEAST_RELATIVE_DETERMINANT = 1e-6
# From a nanometer, as in electron microscopy, to ten meters: anything else is a broken header.
_LEAST_SPACING_MM, _MOST_SPACING_MM = 1e-6, 1e4
_MOST_ORIGIN_MM = 1e7
# The same as for two channels of one case (`data.decode.case`).
_APART_VOXEL = 0.25
# Limit on header and extensions: no real file starts its voxels later.
_MOST_DATA_START = 1 << 30
_PLACEMENT_FIELDS = (
    *("qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z", "xyzt_units"),
)

# nibabel repairs small faults on loading; we check the ones that matter ourselves and name the case.
_QUIET = logging.Logger("voxelocity.decode.quiet", level=logging.CRITICAL + 1)
_NEVER_RAISE = 1_000


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a header says where its voxels lie: qform and sform with their codes, spacing and units, unchanged.

    Attributes:
        fields: names and values of these fields of the header; `pixdim` up to the third axis.
        form: which of the two places the voxels: "sform", "qform", or "none" if the header gives only the spacing.
        forms_apart_mm: how far apart sform and qform put the same corner of the scan; 0 if only one is set.
    """

    fields: tuple[tuple[str, tuple[float, ...]], ...]
    form: str
    forms_apart_mm: float


@dataclass(frozen=True, kw_only=True)
class ScanHeader:
    """What a NIfTI file's header says about it.

    Attributes:
        path: the file.
        grid: shape and affine (sform, then qform, then nibabel's fallback).
        num_channels: entries along the fourth axis, 1 where there is none.
        dtype: of the stored values, before scaling, in this machine's byte order.
        slope: stored values are multiplied by this; 1 where the file asks for no scaling.
        inter: and this is added; 0 where the file asks for no scaling.
        num_bytes: size of the file.
        is_big_endian: byte order of the stored values.
        data_start: where the voxels start among the unpacked bytes.
        placement: the header fields that a file on the same grid repeats.
    """

    path: Path
    grid: Grid
    num_channels: int
    dtype: str
    slope: float
    inter: float
    num_bytes: int
    is_big_endian: bool
    data_start: int
    placement: Placement

    @property
    def is_placed_twice(self) -> bool:
        """Whether the positions by sform and qform differ by more than rounding."""
        return self.placement.forms_apart_mm > _APART_VOXEL * min(self.grid.spacing_mm)

    @property
    def is_scaled(self) -> bool:
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Of the values in the file, including byte order."""
        return np.dtype(self.dtype).newbyteorder(">" if self.is_big_endian else "<")

    @property
    def data_bytes(self) -> int:
        """Unpacked bytes of the voxels."""
        return self.num_channels * self.grid.num_voxels * np.dtype(self.dtype).itemsize


def read_header(path: Path) -> ScanHeader:
    """The checked header of a .nii or .nii.gz file. Reads the first bytes only.

    Raises:
        ScanError: the file is missing, a folder or a pipe, or not NIfTI, is 2-D or empty, its voxel type is not a plain
            number, its spacing is zero, negative, NaN or implausible, or its affine is singular.
    """
    path = Path(path)
    raw = _parse(path, read_start(path, _NIFTI2_BYTES))
    shape = _shape(path, raw)
    slope, inter = _scaling(path, raw)
    grid = Grid.of(shape[:3], _affine(path, raw))
    return ScanHeader(
        path=path,
        grid=grid,
        num_channels=math.prod(shape[3:]),
        dtype=_dtype(path, raw),
        slope=slope,
        inter=inter,
        num_bytes=path.stat().st_size,
        is_big_endian=raw.endianness == ">",
        data_start=_data_start(path, raw),
        placement=_placement(raw, grid),
    )


def _parse(path: Path, start: bytes) -> Any:
    if not start:
        raise ScanError(f"decode: {path}: the file is empty; copy or download it again")
    for kind, num_bytes, magic_at, single in (
        (nib.Nifti1Header, _NIFTI1_BYTES, 344, (b"n+1\0",)),
        (nib.Nifti2Header, _NIFTI2_BYTES, 4, (b"n+2\0\r\n\x1a\n", b"n+2\0")),
    ):
        for endianness, name in (("<", "little"), (">", "big")):
            if len(start) < num_bytes or int.from_bytes(start[:4], name) != num_bytes:  # type: ignore[arg-type]
                continue
            if start[magic_at:].startswith((b"ni1\0", b"ni2\0")):
                raise ScanError(f"decode: {path}: this is the header of a .hdr/.img pair; save it as one .nii.gz file")
            if start[magic_at:].startswith(single):
                return kind(binaryblock=start[:num_bytes], endianness=endianness, check=False)
    raise ScanError(
        f"decode: {path}: this is not a NIfTI file (it starts with {start[:4]!r} and holds no NIfTI header); "
        f"{HOW_TO_CONVERT}"
    )


def _shape(path: Path, raw: Any) -> tuple[int, ...]:
    num_axes = int(raw["dim"][0])
    shape = tuple(int(n) for n in raw["dim"][1 : num_axes + 1])
    if num_axes < 3:
        raise ScanError(
            f"decode: {path}: the image has {num_axes} axes, shape {shape}; volumes need 3 axes: stack the slices of a "
            "scan into one file"
        )
    if num_axes > _MAX_AXES:
        raise ScanError(f"decode: {path}: the header says {num_axes} axes, NIfTI has at most 7; export the file again")
    if min(shape) < 1:
        raise ScanError(f"decode: {path}: the image has shape {shape}, so it holds no voxels; export the file again")
    if math.prod(shape) > _MAX_VOXELS:
        raise ScanError(
            f"decode: {path}: the image has shape {shape}, more voxels than any file can hold; export the file again"
        )
    if sum(n > 1 for n in shape[3:]) > 1:
        raise ScanError(
            f"decode: {path}: the image has shape {shape}; beyond (x, y, z) only one axis of channels is supported: "
            "save each time point or component as a separate case"
        )
    return shape


def _dtype(path: Path, raw: Any) -> str:
    try:
        dtype = raw.get_data_dtype()
    except KeyError:
        dtype = None
    if dtype is None or dtype.kind not in "iuf" or dtype.itemsize > _MAX_VALUE_BYTES:
        raise ScanError(
            f"decode: {path}: the voxel type is {dtype if dtype is not None else 'unknown'} (NIfTI code "
            f"{int(raw['datatype'])}); save it with a plain integer or float type of at most 64 bits"
        )
    return str(dtype.newbyteorder("="))


def _scaling(path: Path, raw: Any) -> tuple[float, float]:
    slope, inter = float(raw["scl_slope"]), float(raw["scl_inter"])
    if slope == 0.0 or not math.isfinite(slope):
        return 1.0, 0.0
    if not math.isfinite(inter):
        raise ScanError(
            f"decode: {path}: scl_slope is {slope} but scl_inter is {inter}; set scl_inter in the header, 0 for none"
        )
    return slope, inter


def _data_start(path: Path, raw: Any) -> int:
    least = int(raw["sizeof_hdr"]) + _EXTENSION_FLAG_BYTES
    start = float(raw["vox_offset"])
    if start == 0.0:
        return least
    if not least <= start <= _MOST_DATA_START or start != int(start):
        where = f"inside the header of {least} bytes" if start < least else "where no voxel can be"
        raise ScanError(
            f"decode: {path}: the header places the voxels at byte {start:.15g}, {where}; export the file again"
        )
    return int(start)


def _affine(path: Path, raw: Any) -> Array:
    for axis, step in zip("xyz", raw["pixdim"][1:4], strict=True):
        _check_spacing(path, axis, float(step), "pixdim")
    fixed = raw.copy()
    fixed.check_fix(logger=_QUIET, error_level=_NEVER_RAISE)
    try:
        affine = np.asarray(fixed.get_best_affine(), dtype=np.float64)
    except (HeaderDataError, ValueError) as error:
        raise ScanError(f"decode: {path}: the orientation is not valid ({error}); set a valid affine") from None
    steps_mm = np.linalg.norm(affine[:3, :3], axis=0)
    for axis, step in zip("xyz", steps_mm, strict=True):
        _check_spacing(path, axis, float(step), "affine")
    if not np.isfinite(affine).all():
        raise ScanError(
            f"decode: {path}: the affine has values that are not finite: {affine.tolist()}; set a valid one"
        )
    if np.abs(affine[:3, 3]).max() > _MOST_ORIGIN_MM:
        raise ScanError(
            f"decode: {path}: the affine puts the first voxel at {affine[:3, 3].tolist()} mm, farther than "
            f"{_MOST_ORIGIN_MM:g} mm away; set a valid one"
        )
    determinant = float(np.linalg.det(affine[:3, :3] / steps_mm))
    if abs(determinant) < _LEAST_RELATIVE_DETERMINANT:
        raise ScanError(
            f"decode: {path}: the affine is singular (two axes point the same way, determinant {determinant:.1e}): "
            f"{affine[:3].tolist()}; set a valid one"
        )
    return affine


def _check_spacing(path: Path, axis: str, step_mm: float, source: str) -> None:
    if not _LEAST_SPACING_MM <= step_mm <= _MOST_SPACING_MM:
        raise ScanError(
            f"decode: {path}: the spacing on {axis} is {step_mm} mm ({source}); "
            "set the true spacing in the header, for example with nibabel, and save the file again"
        )


def _placement(raw: Any, grid: Grid) -> Placement:
    values = [("pixdim", raw["pixdim"][:4]), *((name, raw[name]) for name in _PLACEMENT_FIELDS)]
    has_sform, has_qform = int(raw["sform_code"]) > 0, int(raw["qform_code"]) > 0
    apart_mm = 0.0
    if has_sform and has_qform:
        try:
            apart_mm = grid.largest_difference_mm(Grid.of(grid.shape, raw.get_qform()))
        except (HeaderDataError, ValueError):
            # The qform is not a valid rotation.
            apart_mm = math.inf
    return Placement(
        fields=tuple((name, tuple(np.atleast_1d(value).astype(float).tolist())) for name, value in values),
        form="sform" if has_sform else "qform" if has_qform else "none",
        forms_apart_mm=apart_mm,
    )
