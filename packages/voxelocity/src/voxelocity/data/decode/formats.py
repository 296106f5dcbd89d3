"""The table of formats: who reads and writes each, and the three questions that every format answers.

`core.scan_formats` has what is known of them by name; `codec` what an entry holds.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from voxelocity.core.scan_formats import ANALYZE, DICOM, MGZ, MHA, MINC, NIFTI, NRRD, ScanFormat, format_named
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.codec import Codec
from voxelocity.data.decode.detached import voxel_files
from voxelocity.data.decode.dicom.files import is_dicom
from voxelocity.data.decode.dicom.series import read_series_header, read_series_voxels, series_files
from voxelocity.data.decode.header import ScanHeader
from voxelocity.data.decode.itk import encode_nrrd, read_itk_header, read_itk_voxels
from voxelocity.data.decode.mgh import encode_mgh, read_mgh_header, read_mgh_voxels
from voxelocity.data.decode.minc import read_minc_header, read_minc_voxels
from voxelocity.data.decode.nifti import encode_nifti, nifti_files, read_nifti_header, read_nifti_voxels
from voxelocity_observe.core.errors import ScanError

CODECS = (
    Codec(format=NIFTI, read_header=read_nifti_header, read_voxels=read_nifti_voxels, encode=encode_nifti),
    Codec(format=ANALYZE, read_header=read_nifti_header, read_voxels=read_nifti_voxels, source_files=nifti_files),
    Codec(
        format=NRRD,
        read_header=read_itk_header,
        read_voxels=read_itk_voxels,
        source_files=voxel_files,
        encode=encode_nrrd,
    ),
    Codec(format=MHA, read_header=read_itk_header, read_voxels=read_itk_voxels, source_files=voxel_files),
    Codec(format=MGZ, read_header=read_mgh_header, read_voxels=read_mgh_voxels, encode=encode_mgh),
    Codec(format=MINC, read_header=read_minc_header, read_voxels=read_minc_voxels),
    Codec(format=DICOM, read_header=read_series_header, read_voxels=read_series_voxels, source_files=series_files),
)
"""One entry a format; DICOM SEG, which needs the slices of its scan and names of classes, is `dicom.write`'s."""
_BY_FORMAT = {codec.format: codec for codec in CODECS}


def read_header(path: Path) -> ScanHeader:
    """The checked header of a scan. Reads the beginning of a file, or of each file of a DICOM series.

    Args:
        path: a file in one of the formats that are named by their endings; or a folder that holds one DICOM series, or
            one file of a series, which stands for all files of the series in its folder.

    Raises:
        ScanError: the file is missing, or not in one of these formats, is 2-D or empty, its voxel type is not a plain
            number, its spacing is zero, negative, NaN or implausible, or its affine is singular; the files of a series
            are not the slices of one volume; or the library for the format is not installed.
    """
    named = format_named(path)
    if named is not None and os.fspath(path).lower().endswith(named.begins_with_header):
        with contextlib.suppress(ScanError):
            return _BY_FORMAT[named].read_header(Path(stage(path, is_whole=False)))
        # Only of whole files is it known that they came as they were sent.
    path = _staged(path)
    return _BY_FORMAT[format_of(path)].read_header(path)


def read_scan(path: Path) -> tuple[Array, Grid]:
    """The voxels (c, x, y, z) of a scan, and the grid they lie on.

    The stored dtype is kept if there is no scaling; scaled values are computed in float64 and returned as float32,
    except those of a DICOM series that stay whole numbers. The fourth axis of a file, or the components of its voxels,
    become the channels. The order in memory is (c, z, y, x), slowest first; the array may be a read-only view on the
    unpacked bytes. Safe from several threads; the GIL is free while a gzipped file is unpacked.

    Raises:
        ScanError: as `read_header`; or the file is truncated or damaged.
    """
    voxels, header = read_scan_with_header(path)
    return voxels, header.grid


def read_scan_with_header(path: Path, *, volume: int | None = None) -> tuple[Array, ScanHeader]:
    """As `read_scan`, with all that the header says; of several volumes only one, counted from 1, if it is named.

    Raises:
        ScanError: as `read_scan`, or there is no such volume.
    """
    path = _staged(path)
    codec = _BY_FORMAT[format_of(path)]
    header = codec.read_header(path)
    header.check_volume(volume)
    return codec.read_voxels(header, volume), header


def source_files(path: Path) -> tuple[Path, ...]:
    """All files that a scan consists of: a change in the scan is a change in one of them.

    Of a DICOM series these are all files of its folder, except hidden ones; of a detached header also the file of its
    voxels.

    Raises:
        ScanError: the folder or the header cannot be read.
    """
    path = Path(path)
    return _BY_FORMAT[format_of(path)].source_files(path)


def _staged(path: Path) -> Path:
    """Where to read a scan, with the voxels of a header whose file has another name, which only the header says.

    Raises:
        ScanError: its content cannot be brought here, or the header of one cannot be read.
    """
    staged = Path(stage(path))
    if staged != path and format_named(path) in (NRRD, MHA):
        for voxels in voxel_files(staged)[1:]:
            named = Path(path).parent / os.path.relpath(voxels, staged.parent)
            if named.is_file():
                stage(named)
    return staged


def format_of(path: Path) -> ScanFormat:
    """Which format a scan is in. A file without a known name is opened for its mark."""
    # By name first, so that a file is opened once.
    if (named := format_named(path)) is not None:
        return named
    path = Path(path)
    # NIfTI's reader also says what is wrong with anything else.
    return DICOM if path.is_dir() or (path.is_file() and is_dicom(path)) else NIFTI
