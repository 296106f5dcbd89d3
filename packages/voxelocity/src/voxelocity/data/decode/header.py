"""What a scan's header says, whatever its format, and the checks that all formats share."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.notes import data_set_of, warn_once
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.host import available_memory_bytes

HOW_TO_CONVERT = "convert it to .nii.gz, for example with 3D Slicer (docs/data-sets.md)"
_MAX_VOXELS = 2**48
_LEAST_RELATIVE_DETERMINANT = 1e-6
# From a nanometer, as in electron microscopy, to ten meters: anything else is a broken header.
_LEAST_SPACING_MM, _MOST_SPACING_MM = 1e-6, 1e4
_MOST_ORIGIN_MM = 1e7
# The same as for two channels of one case (`data.decode.case`).
_APART_VOXEL = 0.25
# Beyond rounding: how far the spacing of a header may be from that of its affine.
_APART_SPACING = 0.01
# Below this, free memory is not queried first: that takes a tenth of a millisecond.
_LARGE_BYTES = 64 << 20
_MM_PER_UNIT = {
    1.0: ("", "mm", "millimeter", "millimetre", "millimeters", "millimetres"),
    10.0: ("cm", "centimeter", "centimetre", "centimeters", "centimetres"),
    1e3: ("m", "meter", "metre", "meters", "metres"),
    1e-3: ("um", "\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m", "micron", "microns", "micrometer", "micrometre",
           "micrometers", "micrometres"),
    1e-6: ("nm", "nanometer", "nanometre", "nanometers", "nanometres"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a header says where its voxels lie.

    Attributes:
        fields: of NIfTI, the names and values of qform, sform, their codes, spacing and units, unchanged; `pixdim` up
            to the third axis. Empty in other formats.
        form: which of the header's places is used: "sform", "qform", "patient" in formats that have only one, or "none"
            if the header gives only the spacing.
        forms_apart_mm: how far apart sform and qform put the same corner of the scan; 0 if only one is set.
        pixdim_mm: the spacing that a NIfTI header gives apart from its affine.
    """

    fields: tuple[tuple[str, tuple[float, ...]], ...]
    form: str
    forms_apart_mm: float
    pixdim_mm: tuple[float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ScanHeader:
    """What is known about a scan before its voxels are read. Formats add what they need to read these.

    Attributes:
        path: the file, or the folder of a DICOM series.
        grid: shape and affine, to RAS+ millimeters in every format.
        num_channels: 1 where there is no axis of channels.
        dtype: of the voxels before scaling, in this machine's byte order.
        slope: stored values are multiplied by this; 1 where the file asks for no scaling.
        inter: and this is added; 0 where the file asks for no scaling.
        num_bytes: size of the file, or of all files of a series.
        placement: what a file on the same grid repeats.
        channel_words: how many channels there are and how they differ, where the format says so.
    """

    path: Path
    grid: Grid
    num_channels: int
    dtype: str
    slope: float
    inter: float
    num_bytes: int
    placement: Placement
    channel_words: str = ""

    @property
    def is_placed_twice(self) -> bool:
        """Whether the positions by sform and qform differ by more than rounding."""
        return self.placement.forms_apart_mm > _APART_VOXEL * min(self.grid.spacing_mm)

    @property
    def is_spaced_twice(self) -> bool:
        """Whether the header gives a spacing that is not that of its affine."""
        given, used = self.placement.pixdim_mm, self.grid.spacing_mm
        return given is not None and not np.allclose(given, used, rtol=_APART_SPACING, atol=0.0)

    @property
    def is_scaled(self) -> bool:
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def read_dtype(self) -> str:
        """Of the voxels as `read_scan` gives them."""
        return "float32" if self.is_scaled else self.dtype

    @property
    def data_bytes(self) -> int:
        """Unpacked bytes of the voxels."""
        return self.num_channels * self.grid.num_voxels * np.dtype(self.dtype).itemsize

    def check_volume(self, volume: int | None) -> None:
        """Returns if the scan has a volume of this number, counted from 1, or if none is asked for.

        Raises:
            ScanError: it has not.
        """
        if volume is not None and not 1 <= volume <= self.num_channels:
            words = self.channel_words or f"{self.num_channels} volumes"
            raise ScanError(
                f"decode: {self.path} has no volume {volume}, but {words}; choose one from 1 to {self.num_channels}"
            )

    def part_of(self, volume: int | None, *, start: int) -> range:
        """Where the bytes of a volume, or of all, are in a file whose channels follow each other from `start` on."""
        if volume is None:
            return range(start, start + self.data_bytes)
        num_bytes = self.data_bytes // self.num_channels
        return range(start + (volume - 1) * num_bytes, start + volume * num_bytes)

    @staticmethod
    def only(voxels_cxyz: Array, volume: int | None) -> Array:
        """The channel of one volume as a copy, so that the others do not stay in memory; or all."""
        return voxels_cxyz if volume is None else voxels_cxyz[volume - 1 : volume].copy(order="K")


def check_shape(path: Path, shape: tuple[int, ...]) -> None:
    """Refuses a shape, x first, that is not three axes of voxels and at most one of channels.

    Raises:
        ScanError: there are fewer than three axes, no voxels, more than any file can hold, or two axes of channels.
    """
    if len(shape) < 3:
        raise ScanError(
            f"decode: {path}: the image has {len(shape)} axes, shape {shape}; volumes need 3 axes: stack the slices of "
            "a scan into one file"
        )
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


def check_memory(path: Path, num_bytes: int) -> None:
    """Refuses voxels that take more memory than is free.

    Raises:
        ScanError: they do.
    """
    # The system grants memory that it does not have, and kills the program when it is written to.
    if num_bytes > _LARGE_BYTES and num_bytes > (free_bytes := available_memory_bytes()):
        raise ScanError(
            f"decode: {path}: the voxels take {num_bytes / 1e9:.1f} GB of memory, and {free_bytes / 1e9:.1f} GB are "
            "free; free some, use a machine with more, or crop the scan"
        )


def mm_per_unit(path: Path, unit: str, where: str) -> float:
    """Millimeters in a unit of length that a header names; 1, with a warning, if nobody knows it. "" is a millimeter.

    Args:
        path: of the scan; each data set is warned of once.
        unit: its name.
        where: the field that holds it.
    """
    found = next((mm for mm, names in _MM_PER_UNIT.items() if unit.strip().casefold() in names), None)
    cause = f"unit {unit} {data_set_of(os.path.dirname(os.path.abspath(path)))}"
    if found is None:
        warn_once(
            cause,
            f"decode: {path}: the unit of length is {unit[:40]!r} ({where}), which is unknown; millimeters are "
            "assumed. If that is wrong, set the unit in the header (reported once per data set)",
        )
    elif found != 1.0:
        warn_once(
            cause,
            f"decode: {path}: its header gives lengths in {unit} ({where}); they are read as {found:g} mm each "
            "(reported once per data set)",
        )
    return 1.0 if found is None else found


def check_spacing(path: Path, axis: str, step_mm: float, source: str) -> None:
    """Refuses a spacing that no scan has.

    Raises:
        ScanError: it is zero, negative, NaN or implausible.
    """
    if not _LEAST_SPACING_MM <= step_mm <= _MOST_SPACING_MM:
        raise ScanError(
            f"decode: {path}: the spacing on {axis} is {step_mm} mm ({source}); "
            "set the true spacing in the header, for example with nibabel, and save the file again"
        )


def check_affine(path: Path, affine: Array) -> Array:
    """The affine itself, if it places voxels in space.

    Raises:
        ScanError: its spacing or origin is implausible, or it is singular or not finite.
    """
    steps_mm = np.linalg.norm(affine[:3, :3], axis=0)
    for axis, step in zip("xyz", steps_mm, strict=True):
        check_spacing(path, axis, float(step), "affine")
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


def ras_affine(axes_lps: Array, spacing_mm: Array, origin_lps: Array) -> Array:
    """The affine to RAS+ millimeters of a grid that is given in LPS, as DICOM, NRRD and MHA give it.

    Args:
        axes_lps: (3, 3), the direction of each axis (x, y, z) in a column.
        spacing_mm: (3,), along these axes.
        origin_lps: (3,), the place of the first voxel, in millimeters.
    """
    affine = np.eye(4)
    affine[:3, :3] = axes_lps * spacing_mm
    affine[:3, 3] = origin_lps
    affine[:2] *= -1.0
    # -0.0 and 0.0 are one number, but not one text.
    return affine + 0.0
