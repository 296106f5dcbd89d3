"""Which format a scan is in, and the three questions that every format answers: header, voxels, files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

from voxelocity.core.staging import staged
from voxelocity.core.volume import NIFTI_ENDINGS, Array, Grid
from voxelocity.data.decode.detached import voxel_files
from voxelocity.data.decode.dicom.files import files_in, is_dicom
from voxelocity.data.decode.dicom.series import read_series_header, read_series_voxels
from voxelocity.data.decode.header import ScanHeader
from voxelocity.data.decode.itk import ITK_ENDINGS, read_itk_header, read_itk_voxels
from voxelocity.data.decode.nifti import read_nifti_header, read_nifti_voxels
from voxelocity_observe.core.errors import ScanError


def read_header(path: Path) -> ScanHeader:
    """The checked header of a scan. Reads the beginning of a file, or of each file of a DICOM series.

    Args:
        path: a NIfTI, NRRD, MHA or MHD file; or a folder that holds one DICOM series, or one file of a series, which
            stands for all files of the series in its folder.

    Raises:
        ScanError: the file is missing, or not in one of these formats, is 2-D or empty, its voxel type is not a plain
            number, its spacing is zero, negative, NaN or implausible, or its affine is singular; the files of a series
            are not the slices of one volume; or the library for the format is not installed.
    """
    if os.fspath(path).lower().endswith(NIFTI_ENDINGS):
        with contextlib.suppress(ScanError):
            return read_nifti_header(staged(path, is_whole=False))
        # Only of whole files is it known that they came as they were sent.
    path = staged(path)
    kind = format_of(path)
    if kind == "itk":
        return read_itk_header(Path(path))
    return read_series_header(Path(path)) if kind == "dicom" else read_nifti_header(path)


def read_scan(path: Path) -> tuple[Array, Grid]:
    """The voxels (c, x, y, z) of a scan, and the grid they lie on.

    The stored dtype is kept if there is no scaling; scaled values are computed in float64 and returned as float32,
    except those of a DICOM series that stay whole numbers. The fourth axis of a file, or the components of its voxels,
    become the channels. The order in memory is (c, z, y, x), slowest first; of NIfTI the array may be a read-only view
    on the unpacked bytes. Safe from several threads; the GIL is free while a NIfTI file is unpacked.

    Raises:
        ScanError: as `read_header`; or the file is truncated or damaged.
    """
    voxels, header = read_scan_with_header(path)
    return voxels, header.grid


def read_scan_with_header(path: Path) -> tuple[Array, ScanHeader]:
    """As `read_scan`, with all that the header says."""
    path = staged(path)
    kind = format_of(path)
    if kind == "itk":
        itk = read_itk_header(Path(path))
        return read_itk_voxels(itk), itk
    if kind == "dicom":
        series = read_series_header(Path(path))
        return read_series_voxels(series), series
    nifti = read_nifti_header(path)
    return read_nifti_voxels(nifti), nifti


def source_files(path: Path) -> tuple[Path, ...]:
    """All files that a scan consists of: a change in the scan is a change in one of them.

    Of a DICOM series these are all files of its folder, except hidden ones; of a detached header also the file of its
    voxels.

    Raises:
        ScanError: the folder or the header cannot be read.
    """
    path = Path(path)
    kind = format_of(path)
    if kind == "itk":
        return voxel_files(path)
    if kind != "dicom":
        return (path,)
    return tuple(files_in(path if path.is_dir() else path.parent))


def format_of(path: Path) -> Literal["nifti", "itk", "dicom"]:
    """Which reader takes a scan; "itk" stands for NRRD and MHA. A file without a known name is opened for its mark."""
    name = os.fspath(path).lower()
    # By name first, so that a NIfTI file is opened once.
    if name.endswith(NIFTI_ENDINGS):
        return "nifti"
    if name.endswith(ITK_ENDINGS):
        return "itk"
    path = Path(path)
    # NIfTI's reader also says what is wrong with anything else.
    return "dicom" if path.is_dir() or (path.is_file() and is_dicom(path)) else "nifti"
