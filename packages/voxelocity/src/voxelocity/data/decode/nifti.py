"""NIfTI, in one file or in a pair, and Analyze 7.5, which came before it: the header, checked first, and the voxels.

nibabel parses; the checks are ours. In this room, only this module and `minc` import nibabel.
"""

from __future__ import annotations

import glob
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError
from nibabel.spm2analyze import Spm2AnalyzeHeader

from voxelocity.core.scan_formats import ANALYZE, stem_of, voxels_next_to
from voxelocity.core.volume import Array, Grid, slabs
from voxelocity.data.decode.codec import Encoding
from voxelocity.data.decode.detached import check_link
from voxelocity.data.decode.gunzip import read_start, read_unpacked
from voxelocity.data.decode.header import (
    HOW_TO_CONVERT,
    Placement,
    ScanHeader,
    check_affine,
    check_shape,
    check_spacing,
    mm_per_unit,
)
from voxelocity_observe.core.errors import OutputError, ScanError
from voxelocity_observe.core.plain import excerpt

_NIFTI1_BYTES, _NIFTI2_BYTES = 348, 540
# Class, bytes, where the magic is, and the magic of one file and of a pair.
_KINDS = (
    (nib.Nifti1Header, _NIFTI1_BYTES, 344, (b"n+1\0",), (b"ni1\0",)),
    (nib.Nifti2Header, _NIFTI2_BYTES, 4, (b"n+2\0\r\n\x1a\n", b"n+2\0"), (b"ni2\0\r\n\x1a\n", b"ni2\0")),
)
_ORDERS: tuple[tuple[str, Literal["little", "big"]], ...] = (("<", "little"), (">", "big"))
# The four bytes after the header say whether extensions follow; voxels cannot start before their end.
_EXTENSION_FLAG_BYTES = 4
_MAX_AXES = 7
_MAX_VALUE_BYTES = 8
# Limit on header and extensions: no real file starts its voxels later.
_MOST_DATA_START = 1 << 30
_SLAB_VALUES = 1 << 20
_SCANNER_SPACE = 1
_NO_EXTENSIONS = b"\0\0\0\0"
_RIGHT_ANGLE_TOLERANCE = 1e-5
_PLACEMENT_FIELDS = (
    *("qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z", "xyzt_units"),
)

# Of the lowest three bits of `xyzt_units`; the others say what the unit of time is.
_LENGTH_BITS, _UNITS = 0b111, {0: "", 1: "m", 2: "mm", 3: "um"}

# nibabel repairs small faults on loading; we check the ones that matter ourselves and name the case.
_QUIET = logging.Logger("voxelocity.decode.quiet", level=logging.CRITICAL + 1)
_NEVER_RAISE = 1_000


@dataclass(frozen=True, kw_only=True)
class NiftiHeader(ScanHeader):
    """What a NIfTI file's header says about it; its grid is that of the sform, then the qform, then nibabel's fallback.

    Attributes:
        is_big_endian: byte order of the stored values.
        voxels: the file that holds them; of a pair another one than `path`.
        data_start: where they start among its unpacked bytes.
    """

    is_big_endian: bool
    voxels: Path
    data_start: int

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Of the values in the file, including byte order."""
        return np.dtype(self.dtype).newbyteorder(">" if self.is_big_endian else "<")


def read_nifti_header(path: Path) -> NiftiHeader:
    """The checked header of a file of NIfTI, or of a pair. Reads the first bytes only.

    Raises:
        ScanError: a file is missing, a folder or a pipe, or not of the format, is 2-D or empty, its voxel type is not a
            plain number, its spacing is zero, negative, NaN or implausible, or its affine is singular.
    """
    path = Path(path)
    raw = _parse(path, read_start(path, _NIFTI2_BYTES))
    shape = _shape(path, raw)
    slope, inter = _scaling(path, raw)
    unit_mm = _unit_mm(path, raw)
    grid = Grid.of(shape[:3], _affine(path, raw, unit_mm))
    files = nifti_files(path)
    if _is_pair(path) and len(files) == 1:
        raise ScanError(
            f"decode: {path}: {stem_of(path.name)}.img, the file of its voxels, is not there; copy both files of the "
            "scan into one folder"
        )
    return NiftiHeader(
        path=path,
        grid=grid,
        num_channels=math.prod(shape[3:]),
        dtype=_dtype(path, raw),
        slope=slope,
        inter=inter,
        num_bytes=sum(file.stat().st_size for file in files),
        is_big_endian=raw.endianness == ">",
        voxels=files[-1],
        data_start=_data_start(path, raw),
        placement=_placement(raw, grid, unit_mm),
    )


def read_nifti_voxels(header: NiftiHeader, volume: int | None = None) -> Array:
    """The voxels (c, x, y, z) of the file, or of one of its volumes, as nibabel gives them, copied only where needed.

    The stored dtype is kept if the header has no scaling (big-endian values come in this machine's order); scaled
    values are computed in float64 and returned as float32. Without scaling or byte swapping the array is a read-only
    view on the unpacked bytes.

    Raises:
        ScanError: the file is truncated or damaged.
    """
    # Voxels of a pair begin with any bytes, also those that packed files begin with.
    is_plain = _is_pair(header.path) and not header.voxels.name.lower().endswith(".gz")
    num_expected = header.data_start + header.data_bytes
    part = header.part_of(volume, start=header.data_start)
    data = read_unpacked(header.voxels, num_expected=num_expected, part=part, is_plain=is_plain)
    x, y, z = header.grid.shape
    stored = data.view(header.stored_dtype).reshape((-1, z, y, x)).transpose(0, 3, 2, 1)
    if not header.is_scaled:
        return stored.astype(np.dtype(header.dtype), copy=False)
    scaled = np.empty_like(stored, dtype=np.float32)
    # What float32 cannot hold becomes infinite, and is refused by those who use it.
    with np.errstate(over="ignore"):
        for source, target in slabs(stored, scaled, max_values=_SLAB_VALUES):
            target[...] = source.astype(np.float64) * header.slope + header.inter
    return scaled


def nifti_files(path: Path) -> tuple[Path, ...]:
    """The file, and of a pair that of its voxels behind it, if there is one.

    Raises:
        ScanError: that file is a link to a file of the system.
    """
    found = voxels_next_to(path)[:1] if _is_pair(path) else []
    for file in found:
        check_link(path, file)
    return (path, *found)


def encode_nifti(
    path: Path,
    grid: Grid,
    dtype: np.dtype[Any],
    placement: Placement | None,
    *,
    num_maps: int | None = None,
    scale: float | None = None,
) -> Encoding:
    """An array in a .nii or .nii.gz file: its affine as float32 sform, and as qform if it is a rotation with zooms.

    Args:
        path: of the file.
        grid: of the array.
        dtype: of the array.
        placement: repeated field by field, if it is that of a NIfTI file.
        num_maps: of several arrays, one after the other on the fourth axis, how many these are.
        scale: readers multiply the stored values by it.

    Raises:
        OutputError: NIfTI cannot store such an array.
    """
    stored = dtype.newbyteorder("=")
    header = nib.Nifti1Header()
    try:
        header.set_data_dtype(stored)
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
    return Encoding(
        dtype=stored,
        header=bytes(header.binaryblock) + _NO_EXTENSIONS,
        is_packed=path.name.lower().endswith(".gz"),
    )


def _is_pair(path: Path) -> bool:
    return path.name.lower().endswith(ANALYZE.endings)


def _is_analyze(raw: Any) -> bool:
    return isinstance(raw, Spm2AnalyzeHeader)


def _parse(path: Path, start: bytes) -> Any:
    if not start:
        raise ScanError(f"decode: {path}: the file is empty; copy or download it again")
    is_pair = _is_pair(path)
    for kind, num_bytes, magic_at, single, pair in _KINDS:
        for endianness, name in _ORDERS:
            if len(start) < num_bytes or int.from_bytes(start[:4], name) != num_bytes:
                continue
            if start[magic_at:].startswith(single if is_pair else pair):
                what = "a whole file; name it .nii"
                if not is_pair:
                    what = "the header of a pair; name it .hdr, next to its .img"
                raise ScanError(f"decode: {path}: the header says that this is {what}")
            if start[magic_at:].startswith(pair if is_pair else single):
                return kind(binaryblock=start[:num_bytes], endianness=endianness, check=False)
    if is_pair:
        return _parse_analyze(path, start)
    if path.name.lower().endswith(ANALYZE.voxels) and any(path.parent.glob(f"{glob.escape(path.stem)}.[hH][dD][rR]*")):
        raise ScanError(f"decode: {path}: these are the voxels of a pair; name its header, the .hdr file")
    raise ScanError(
        f"decode: {path}: this is not a NIfTI file (it starts with {start[:4]!r} and holds no NIfTI header); "
        f"{HOW_TO_CONVERT}"
    )


def _parse_analyze(path: Path, start: bytes) -> Any:
    """A header of Analyze 7.5, which has no magic but its length; as SPM and nibabel read it."""
    order = next((order for order, name in _ORDERS if int.from_bytes(start[:4], name) == _NIFTI1_BYTES), None)
    # Where the magic of NIfTI was, half of it is damage.
    if order is None or len(start) < _NIFTI1_BYTES or start[344:345] == b"n" or start[345:347] in (b"+1", b"i1"):
        raise ScanError(
            f"decode: {path}: this is not the header of a pair of NIfTI or Analyze (it starts with {start[:4]!r}); "
            f"{HOW_TO_CONVERT}"
        )
    placing = path.with_name(f"{stem_of(path.name)}.mat")
    if placing.is_file():
        raise ScanError(
            f"decode: {path}: {placing.name} defines its orientation and is not supported; save both as .nii.gz, for "
            'example by nibabel.save(nibabel.load("a.hdr"), "a.nii.gz")'
        )
    return Spm2AnalyzeHeader(binaryblock=start[:_NIFTI1_BYTES], endianness=order, check=False)


def _shape(path: Path, raw: Any) -> tuple[int, ...]:
    num_axes = int(raw["dim"][0])
    shape = tuple(int(n) for n in raw["dim"][1 : num_axes + 1])
    if not 0 <= num_axes <= _MAX_AXES:
        raise ScanError(f"decode: {path}: the header says {num_axes} axes, NIfTI has at most 7; export the file again")
    check_shape(path, shape)
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
    if _is_analyze(raw):
        # As SPM stores it, or from the ranges before and after scaling.
        slope, inter = (float(value or 0.0) for value in raw.get_slope_inter())
    else:
        slope, inter = float(raw["scl_slope"]), float(raw["scl_inter"])
    if slope == 0.0 or not math.isfinite(slope):
        return 1.0, 0.0
    if not math.isfinite(inter):
        raise ScanError(
            f"decode: {path}: scl_slope is {slope} but scl_inter is {inter}; set scl_inter in the header, 0 for none"
        )
    return slope, inter


def _data_start(path: Path, raw: Any) -> int:
    least = 0 if _is_pair(path) else int(raw["sizeof_hdr"]) + _EXTENSION_FLAG_BYTES
    start = float(raw["vox_offset"])
    if start == 0.0:
        return least
    if not least <= start <= _MOST_DATA_START or start != int(start):
        where = f"inside the header of {least} bytes" if start < least else "beyond any plausible header"
        raise ScanError(
            f"decode: {path}: the header puts the voxels at byte {start:.15g}, {where}; export the file again"
        )
    return int(start)


def _unit_mm(path: Path, raw: Any) -> float:
    if _is_analyze(raw):
        return 1.0
    code = int(raw["xyzt_units"]) & _LENGTH_BITS
    return mm_per_unit(path, _UNITS.get(code, f"code {code}"), "xyzt_units")


def _affine(path: Path, raw: Any, unit_mm: float) -> Array:
    for axis, step in zip("xyz", raw["pixdim"][1:4], strict=True):
        check_spacing(path, axis, float(step) * unit_mm, "pixdim")
    fixed = raw.copy()
    fixed.check_fix(logger=_QUIET, error_level=_NEVER_RAISE)
    try:
        affine = np.asarray(fixed.get_best_affine(), dtype=np.float64)
    except (HeaderDataError, ValueError) as error:
        raise ScanError(f"decode: {path}: the orientation is not valid ({excerpt(error)}); set a valid one") from None
    affine[:3] *= unit_mm
    return check_affine(path, affine)


def _placement(raw: Any, grid: Grid, unit_mm: float) -> Placement:
    if _is_analyze(raw):
        return Placement(fields=(), form="none", forms_apart_mm=0.0)
    values = [("pixdim", raw["pixdim"][:4]), *((name, raw[name]) for name in _PLACEMENT_FIELDS)]
    has_sform, has_qform = int(raw["sform_code"]) > 0, int(raw["qform_code"]) > 0
    x, y, z = raw["pixdim"][1:4]
    apart_mm = 0.0
    if has_sform and has_qform:
        try:
            qform_mm = np.diag([unit_mm, unit_mm, unit_mm, 1.0]) @ raw.get_qform()
            apart_mm = grid.largest_difference_mm(Grid.of(grid.shape, qform_mm))
        except (HeaderDataError, ValueError):
            # The qform is not a valid rotation.
            apart_mm = math.inf
    return Placement(
        fields=tuple((name, tuple(np.atleast_1d(value).astype(float).tolist())) for name, value in values),
        form="sform" if has_sform else "qform" if has_qform else "none",
        forms_apart_mm=apart_mm,
        pixdim_mm=(float(x) * unit_mm, float(y) * unit_mm, float(z) * unit_mm),
    )


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
