"""The files of a folder as series, and the slices of one series as a volume: sorted, checked, placed."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from voxelocity.core.scan_formats import DICOM
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.dicom.files import Slice, files_in, is_dicom, read_slice
from voxelocity.data.decode.dicom.frames import slices_of
from voxelocity.data.decode.dicom.mosaic import is_mosaic
from voxelocity.data.decode.dicom.order import STRAIGHTEN, check_same_places, in_order, normal_of
from voxelocity.data.decode.dicom.pixels import read_frames
from voxelocity.data.decode.dicom.volumes import divide
from voxelocity.data.decode.header import Placement, ScanHeader, check_affine, check_memory, check_shape, ras_affine
from voxelocity.data.decode.notes import data_set_of, warn_once
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt, shortened
from voxelocity_observe.core.quantities import count_text, listed

_BITS = (8, 16, 32)
_WHOLE_DTYPES = ("uint8", "int16", "uint16", "int32")
# Rounding of direction cosines, and of a spacing relative to itself.
_COSINE_TOLERANCE, _SPACING_TOLERANCE = 1e-4, 1e-3
# How far the lengths of two directions may be from 1, and their product from 0: more is no rounding.
_MOST_SKEWED = 1e-2
_LISTED, _NAME = 6, 80


@dataclass(frozen=True, kw_only=True)
class SeriesHeader(ScanHeader):
    """What the files of a series say about their volume: x along rows, y along columns, z along the normal.

    Attributes:
        slices: from the first plane of the volume to the last; of several volumes, those of the first.
        others: those of further volumes at the same places, each of which is a channel.
    """

    slices: tuple[Slice, ...]
    others: tuple[tuple[Slice, ...], ...] = ()

    def of_volume(self, number: int) -> SeriesHeader:
        """The same of one of its volumes, counted from 1: objects that are made of a series refer to its slices."""
        return replace(self, slices=(self.slices, *self.others)[number - 1], others=(), num_channels=1)


def read_series_header(path: Path) -> SeriesHeader:
    """The checked header of a DICOM series; opens every file of its folder, up to the pixels.

    Args:
        path: a folder that holds one series, or a file of the series, which then is chosen among those in its folder.

    Raises:
        ScanError: the folder holds no series or several, or the files are not the slices of one volume: one is missing,
            there twice, of another size, spacing or orientation, or the slices are shifted against each other.
    """
    slices = _check_alike(path, _series_of(path))
    volumes, words = divide(slices, normal_of(slices[0]))
    ordered, axes_lps, spacing_mm = in_order(path, volumes[0])
    others = tuple(in_order(path, volume)[0] for volume in volumes[1:])
    first = ordered[0]
    shape = (first.shape[1], first.shape[0], len(ordered))
    check_shape(path, shape)
    if others:
        check_same_places(path, ordered, others, least_mm=min(spacing_mm))
        warn_once(
            f"volumes {data_set_of(os.path.dirname(os.path.abspath(path)))}",
            f"decode: {path}: the series holds {words}; each becomes a channel, in the order of the slices' instance "
            "numbers. `predict --volume N` takes one (reported once per data set)",
        )
    affine = ras_affine(axes_lps, spacing_mm, np.array(first.position_mm))
    return SeriesHeader(
        path=path,
        grid=Grid.of(shape, check_affine(path, affine)),
        num_channels=len(volumes),
        dtype=_dtype(slices),
        slope=1.0,
        inter=0.0,
        num_bytes=sum(file.stat().st_size for file in {slice_.path for slice_ in slices}),
        placement=Placement(fields=(), form="patient", forms_apart_mm=0.0),
        channel_words=words,
        slices=ordered,
        others=others,
    )


def read_series_voxels(header: SeriesHeader, volume: int | None = None) -> Array:
    """The voxels (c, x, y, z), rescaled: whole numbers where slope and intercept are, else float32 by way of float64.

    Of one of several volumes, only the files of its slices are read.

    Raises:
        ScanError: the pixels of a file are missing, truncated or damaged, or the volume does not fit into memory.
    """
    header = header if volume is None else header.of_volume(volume)
    check_memory(header.path, header.data_bytes)
    x, y, z = header.grid.shape
    voxels_czyx = np.empty((header.num_channels, z, y, x), dtype=header.dtype)
    planes_of: dict[Path, list[tuple[Array, Slice]]] = defaultdict(list)
    for plane, slice_ in zip(
        voxels_czyx.reshape(-1, y, x), itertools.chain(header.slices, *header.others), strict=True
    ):
        planes_of[slice_.path].append((plane, slice_))
    # Each file is read once, also where frames of several files alternate.
    for planes in planes_of.values():
        frames = read_frames(planes[0][1])
        for plane, slice_ in planes:
            pixels = frames[slice_.frame or 0]
            if (slice_.slope, slice_.inter) == (1.0, 0.0):
                plane[...] = pixels
            else:
                with np.errstate(over="ignore"):
                    plane[...] = pixels.astype(np.float64) * slice_.slope + slice_.inter
    voxels: Array = voxels_czyx.transpose(0, 3, 2, 1)
    return voxels


def series_files(path: Path) -> tuple[Path, ...]:
    """All files in the folder of a series, which the path names, or a file of it.

    Raises:
        ScanError: the folder cannot be read.
    """
    return tuple(files_in(path if path.is_dir() else path.parent))


def series_in(folder: Path) -> Mapping[str, Sequence[Slice]]:
    """The images in a folder, not below it, by the UID of their series.

    Files that are not DICOM are left out, with a warning if their names are like those of the images.

    Raises:
        ScanError: a file is named as DICOM and is not, is damaged, or pydicom is not installed.
    """
    found: dict[str, list[Slice]] = defaultdict(list)
    others: list[Path] = []
    for file in files_in(folder):
        if is_dicom(file):
            slice_ = read_slice(file)
            if slice_ is not None:
                found[slice_.series_uid] += slices_of(slice_)
        elif file.name.lower().endswith(DICOM.endings):
            raise ScanError(
                f"decode: {file}: the file has a DICOM name but no DICOM content ({file.stat().st_size:,} bytes); "
                "copy or export it again"
            )
        else:
            others.append(file)
    endings = {slice_.path.suffix for slices in found.values() for slice_ in slices}
    # Slices are often numbered in place of an ending.
    doubtful = [file.name for file in others if file.suffix in endings or file.suffix[1:].isdecimal()]
    if doubtful and found:
        warn_once(
            f"left out {folder}",
            f"decode: {folder}: left out {count_text(len(doubtful), 'file')} without DICOM content "
            f"({listed(doubtful)}); if they are slices, copy or export them again",
        )
    return found


def holds_series(folder: Path) -> bool:
    """Whether a file in the folder, not below it, is DICOM with an image of a scan, or one too damaged to know.

    Opens the files in order of their names until one is found.

    Raises:
        ScanError: the folder cannot be read.
    """
    for file in files_in(folder):
        try:
            if is_dicom(file) and read_slice(file) is not None:
                return True
        except ScanError:
            # Reading the series says what is wrong.
            return True
    return False


def series_text(slices: Sequence[Slice]) -> str:
    """One series in a few words: what it is, how many slices it has, and the name of a file to choose it by."""
    first = slices[0]
    parts = (excerpt(first.modality, _NAME), excerpt(first.series_number, _NAME), shortened(first.description))
    title = " ".join(part for part in parts if part)
    return f"{title} with {len(slices)} slices, such as {first.path.name}"


def _series_of(path: Path) -> Sequence[Slice]:
    is_folder = path.is_dir()
    found = series_in(path if is_folder else path.parent)
    if not is_folder:
        chosen = [series for series in found.values() if any(slice_.path == path for slice_ in series)]
        if not chosen:
            raise ScanError(f"decode: {path}: the DICOM file holds no image of a scan; name a slice of a series")
        return chosen[0]
    if not found:
        raise ScanError(f"decode: {path}: the folder holds no DICOM images; name one that holds a series")
    if len(found) > 1:
        named = [series_text(series) for series in list(found.values())[:_LISTED]]
        named += ["..."] if len(found) > _LISTED else []
        raise ScanError(
            f"decode: {path}: the folder holds {len(found)} series: {'; '.join(named)}; "
            "choose one by naming one of its files instead of the folder, or move each into a folder of its own"
        )
    return next(iter(found.values()))


def _check_alike(path: Path, slices: Sequence[Slice]) -> Sequence[Slice]:
    """Refuses files that cannot be planes of one volume, whatever their place."""
    first = slices[0]
    for slice_ in slices:
        problem = _problem_of(slice_)
        if problem:
            raise ScanError(f"decode: {slice_.path}: {problem}")
        for what, value, expected, tolerance in (
            ("size (rows, columns)", slice_.shape, first.shape, 0.0),
            (
                "pixel spacing",
                slice_.spacing_mm,
                first.spacing_mm,
                _SPACING_TOLERANCE * min(first.spacing_mm or (1.0,)),
            ),
            ("orientation", slice_.directions, first.directions, _COSINE_TOLERANCE),
            ("bits and sign", (*slice_.bits, slice_.is_signed), (*first.bits, first.is_signed), 0.0),
        ):
            if np.abs(np.array(value, dtype=float) - np.array(expected, dtype=float)).max() > tolerance:
                raise ScanError(
                    f"decode: {path}: the slices differ in {what}: {first.path.name} has {expected}, "
                    f"{slice_.path.name} has {value}; move the files that do not belong to the volume, such as a "
                    "localizer, elsewhere"
                )
    patients = {slice_.patient_id for slice_ in slices}
    if len(patients) > 1:
        warn_once(
            f"patients of {path}",
            f"decode: {path}: the slices of the series name {len(patients)} patients (PatientID); check that they are "
            "those of one scan",
        )
    return slices


def _problem_of(slice_: Slice) -> str:
    missing = [
        name
        for name, value in (
            ("ImagePositionPatient", slice_.position_mm),
            ("ImageOrientationPatient", slice_.directions),
            ("PixelSpacing", slice_.spacing_mm),
        )
        if value is None
    ]
    if is_mosaic(slice_) and not slice_.num_tiles:
        return (
            "the file is a mosaic, a whole volume as tiles of one picture, and does not say how many and where "
            f"these are (CSA header); {STRAIGHTEN}"
        )
    if slice_.num_frames > 1:
        return f"the file holds {slice_.num_frames} frames, without their positions; {STRAIGHTEN}"
    if missing:
        return (
            f"{' and '.join(missing)} are missing, so the position of the slice is unknown; move it out of the folder"
        )
    if min(slice_.spacing_mm or ()) <= 0.0:
        return f"PixelSpacing is {slice_.spacing_mm} mm; export the series again"
    if _skewness(slice_.directions or ()) > _MOST_SKEWED:
        return (
            f"ImageOrientationPatient is {slice_.directions}, which are not two directions at a right angle, each of "
            "length 1; export the series again"
        )
    if slice_.slope == 0.0:
        return "RescaleSlope is 0, which would make all values equal; export the series again"
    if slice_.num_samples != 1:
        return f"a pixel has {slice_.num_samples} values, as in a color image; name a grayscale series"
    if slice_.photometric == "MONOCHROME1":
        return (
            "low values are shown bright (MONOCHROME1), and programs disagree whether to invert such values; if the "
            "values have their usual meaning, such as Hounsfield units, change the attribute with `dcmodify -nb -m "
            "PhotometricInterpretation=MONOCHROME2`; otherwise write the series as .nii.gz with SimpleITK, which "
            "inverts them"
        )
    if slice_.photometric not in ("", "MONOCHROME2"):
        return f"its values are not intensities ({excerpt(slice_.photometric, _NAME)}); name a grayscale series"
    if slice_.bits[0] not in _BITS or not 0 < slice_.bits[1] <= slice_.bits[0]:
        return (
            f"pixels have {slice_.bits[1]} of {slice_.bits[0]} bits; {' or '.join(map(str, _BITS))} are read: "
            f"{STRAIGHTEN}"
        )
    if slice_.cannot_decode:
        return (
            f"the pixels are compressed ({slice_.cannot_decode}), and no installed package can decompress them; "
            "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or decompress the files with `dcmdjpeg` or "
            "`gdcmconv --raw`"
        )
    return ""


def _skewness(directions: Sequence[float]) -> float:
    axes = np.array(directions).reshape(2, 3)
    return float(np.abs(axes @ axes.T - np.eye(2)).max())


def _dtype(slices: Sequence[Slice]) -> str:
    """Of the rescaled values: the smallest whole type that holds whatever the files could store, else float32."""
    if any(slice_.has_table for slice_ in slices):
        return "uint16" if all(slice_.has_table for slice_ in slices) else "float32"
    scalings = {(slice_.slope, slice_.inter) for slice_ in slices}
    slope, inter = next(iter(scalings))
    if len(scalings) > 1 or not (slope.is_integer() and inter.is_integer()):
        return "float32"
    ends = [value * slope + inter for value in slices[0].stored_range]
    for name in _WHOLE_DTYPES:
        limits = np.iinfo(name)
        if limits.min <= min(ends) and max(ends) <= limits.max:
            return name
    return "float32"
