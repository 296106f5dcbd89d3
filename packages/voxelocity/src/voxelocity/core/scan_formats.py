"""The formats of scans, as far as names, messages and documents need them. `data.decode.formats` reads and writes them.

Imports nothing beyond the standard library, so that `--help` and the doctor can say which formats there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ScanFormat:
    """One format of scans.

    Attributes:
        name: as messages and documents call it.
        endings: of its files, in lower case; where one ends with another, the longer one comes first.
        package: the library that reads its headers, as pip calls it.
        extra: of ours, that brings the library; "" if it is always installed.
        is_named: whether a file is of the format if its name ends so. Of others, the content decides.
        is_one_file: whether a scan never is more than one file.
        voxels: endings of files of voxels that have the name of their header, and belong to its scan.
        begins_with_header: endings of files whose first 64 KiB, in a file of full size, are enough to read the header.
        checked: whose voxels a checksum protects: a changed bit is refused. "" if nothing is.
        unplaced: how a header says that it gives no position in space; "" if it always gives one.
        written: endings that can be written; predictions have the first.
        output: what `predict --format` calls the format; "" if it is not written.
    """

    name: str
    endings: tuple[str, ...]
    package: str
    extra: str = ""
    is_named: bool = True
    is_one_file: bool = True
    voxels: tuple[str, ...] = ()
    begins_with_header: tuple[str, ...] = ()
    checked: str = ""
    unplaced: str = ""
    written: tuple[str, ...] = ()
    output: str = ""


NIFTI = ScanFormat(
    name="NIfTI",
    endings=(".nii.gz", ".nii.bz2", ".nii"),
    package="nibabel",
    begins_with_header=(".nii.gz", ".nii"),
    checked=".nii.gz, .nii.bz2",
    unplaced="qform_code and sform_code are 0",
    written=(".nii.gz", ".nii"),
    output="nii.gz",
)
ANALYZE = ScanFormat(
    name="Analyze",
    endings=(".hdr.gz", ".hdr"),
    package="nibabel",
    is_one_file=False,
    voxels=(".img.gz", ".img"),
    checked=".img.gz",
    unplaced="Analyze 7.5 has none; of a pair of NIfTI, qform_code and sform_code are 0",
)
NRRD = ScanFormat(
    name="NRRD",
    endings=(".nrrd", ".nhdr"),
    package="SimpleITK",
    extra="formats",
    is_one_file=False,
    voxels=(".raw.gz", ".raw"),
    checked="packed NRRD",
    unplaced="no space",
    written=(".nrrd",),
    output="nrrd",
)
MHA = ScanFormat(
    name="MHA",
    endings=(".mha", ".mhd"),
    package="SimpleITK",
    extra="formats",
    is_one_file=False,
    voxels=(".zraw", ".raw"),
    checked="compressed MHA",
)
MGZ = ScanFormat(
    name="MGZ",
    endings=(".mgz", ".mgh"),
    package="numpy",
    begins_with_header=(".mgz", ".mgh"),
    checked=".mgz",
    unplaced="goodRASFlag is 0",
    written=(".mgz", ".mgh"),
    output="mgz",
)
MINC = ScanFormat(name="MINC", endings=(".mnc.gz", ".mnc"), package="nibabel", checked=".mnc.gz")
DICOM = ScanFormat(
    name="DICOM",
    endings=(".dcm", ".ima", ".dicom"),
    package="pydicom",
    extra="formats",
    is_named=False,
    is_one_file=False,
    written=(".dcm",),
    output="dicom-seg",
)
SCAN_FORMATS = (NIFTI, ANALYZE, NRRD, MHA, MGZ, MINC, DICOM)
NAMED_FORMATS = tuple(format for format in SCAN_FORMATS if format.is_named)
SCAN_ENDINGS = tuple(ending for format in NAMED_FORMATS for ending in format.endings)
"""Of the formats that are recognized by the names of their files; a DICOM file is one by its content."""
_VOXELS = tuple(ending for format in NAMED_FORMATS for ending in format.voxels)
FILE_ENDINGS = (*SCAN_ENDINGS, *DICOM.written)
"""Of files of scans, labels and predictions."""
CONTOURS = "dicom-rtstruct"
OUTPUTS = {format.output: format for format in SCAN_FORMATS if format.output} | {CONTOURS: DICOM}
"""The formats of predictions, by what `predict --format` calls them."""


def format_named(path: str | os.PathLike[str]) -> ScanFormat | None:
    """The format that the name of a file stands for, in any capitalization; None if its content has to be asked."""
    name = os.fspath(path).lower()
    return next((format for format in NAMED_FORMATS if name.endswith(format.endings)), None)


def stem_of(name: str) -> str:
    """The name of a scan's file without the ending of its format, in any capitalization."""
    ending = next((ending for ending in FILE_ENDINGS if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def voxels_next_to(path: Path) -> list[Path]:
    """The files of voxels that have the name of this header and lie next to it, packed as it is first; mostly none."""
    named, is_packed = format_named(path), path.name.lower().endswith(".gz")
    endings = sorted(named.voxels if named is not None else (), key=lambda ending: ending.endswith(".gz") != is_packed)
    places = [path.with_name(stem_of(path.name) + form) for ending in endings for form in (ending, ending.upper())]
    return [place for place in places if place.is_file()]


def headers_next_to(path: Path) -> list[Path]:
    """The headers that may be those of this file of voxels and lie next to it; none if it is none."""
    return sorted(place for name in _header_names(path.name) if (place := path.with_name(name)).is_file())


def without_companions(names: Iterable[str]) -> list[str]:
    """The names of files without those of voxels whose header is among them: both are one scan."""
    listed = list(names)
    headers = {name.lower() for name in listed if name.lower().endswith(SCAN_ENDINGS)}
    return [name for name in listed if not (name.lower().endswith(_VOXELS) and _header_names(name.lower()) & headers)]


def _header_names(name: str) -> set[str]:
    """What the header of this file of voxels may be called, its ending in lower or upper case; empty if it is none."""
    return {
        name[: -len(ending)] + form
        for format in NAMED_FORMATS
        for ending in format.voxels
        if name.lower().endswith(ending)
        for header in format.endings
        for form in (header, header.upper())
    }


def in_words(names: Iterable[str], last: str = "or") -> str:
    """The names as a part of a sentence: "NIfTI, NRRD or DICOM"."""
    *before, end = names
    return f"{', '.join(before)} {last} {end}" if before else end


def format_names(last: str = "or", *, formats: Iterable[ScanFormat] = SCAN_FORMATS) -> str:
    """The names of formats as a part of a sentence."""
    return in_words((format.name for format in formats), last)
