"""One DICOM file as a plain record, through pydicom; `pixels` reads its values, `series` makes the volume."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voxelocity.data.decode.dicom.deflate import check_deflated
from voxelocity.data.decode.dicom.lossless_jpeg import SYNTAXES as LOSSLESS_JPEG
from voxelocity.data.decode.gunzip import reading
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt, shortened

_MARK_AT, _MARK = 128, b"DICM"
# Files without the mark and the 128 bytes before it begin with an element of the file's meta information, or of the
# group that says what the file is, such as its character set or the type of its image.
_FIRST_GROUPS = (b"\x02\x00", b"\x08\x00", b"\x00\x08")
_LONGEST_FIRST_ELEMENT = 1 << 10
# What these hold besides pixels, or instead of them, is not a scan.
_OTHER_MODALITIES = ("SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "SR", "PR", "KO", "REG", "DOC")
APART = {
    "TemporalPositionIdentifier": "time point",
    "DiffusionBValue": "b-value",
    "EchoTime": "echo time",
    "EchoNumbers": "echo",
    "TriggerTime": "trigger time",
    "AcquisitionNumber": "acquisition",
    "ImageType": "kind of image",
    "AcquisitionTime": "time",
}
"""What may distinguish volumes of one series, in words; the first that does counts."""
_TAGS = (
    *(
        "PatientID",
        "Modality",
        "SeriesDescription",
        "SeriesInstanceUID",
        "SeriesNumber",
        "SOPInstanceUID",
        "InstanceNumber",
    ),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "PhotometricInterpretation"),
    *APART,
)
# By (is implicit, is little-endian), for files that do not name theirs.
_SYNTAXES = {
    (True, True): "1.2.840.10008.1.2",
    (False, True): "1.2.840.10008.1.2.1",
    (False, False): "1.2.840.10008.1.2.2",
}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one file says about its image; numbers that it does not give are None.

    Attributes:
        position_mm: of the first pixel, in LPS.
        directions: along a row, then along a column: six cosines in LPS.
        spacing_mm: between rows, then between columns.
        step_mm: "SpacingBetweenSlices", else "SliceThickness": used only where a series has one slice.
        bits: allocated, stored.
        has_table: whether a table (Modality LUT) gives the values, in place of slope and intercept.
        photometric: "MONOCHROME2" where large values are bright.
        image_type: words such as "ORIGINAL" or "MOSAIC".
        syntax: UID of the transfer syntax.
        cannot_decode: which compression needs a plugin that is not installed; empty if the pixels can be read.
        apart: what may distinguish slices of one place, by keyword; numbers where they are.
        number: "InstanceNumber", or that of the frame; -1 if there is none.
        frame: which one of an enhanced multi-frame file this is, or which tile of a mosaic; None of any other file.
        num_stored: frames of the file.
        num_tiles: along each side of the mosaic; 0 of any other file.
    """

    path: Path
    uid: str
    patient_id: str
    modality: str
    series_uid: str
    series_number: str
    description: str
    position_mm: tuple[float, ...] | None
    directions: tuple[float, ...] | None
    spacing_mm: tuple[float, ...] | None
    step_mm: float | None
    shape: tuple[int, int]
    num_frames: int
    num_samples: int
    bits: tuple[int, int]
    is_signed: bool
    slope: float
    inter: float
    has_table: bool
    photometric: str
    image_type: tuple[str, ...]
    syntax: str
    cannot_decode: str
    apart: tuple[tuple[str, float | str], ...] = ()
    number: float = -1.0
    frame: int | None = None
    num_stored: int = 1
    num_tiles: int = 0

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{'int' if self.is_signed else 'uint'}{self.bits[0]}")

    @property
    def stored_range(self) -> tuple[int, int]:
        """Smallest and largest value that the stored bits can hold."""
        num_bits = self.bits[1]
        return (-(1 << num_bits - 1), (1 << num_bits - 1) - 1) if self.is_signed else (0, (1 << num_bits) - 1)


def damage_errors() -> tuple[type[Exception], ...]:
    """What pydicom and its plugins raise on damaged bytes, also later, when a field is used for the first time."""
    from pydicom.errors import BytesLengthException, InvalidDicomError

    builtin = (ValueError, LookupError, AttributeError, TypeError, RuntimeError, ArithmeticError, EOFError, OSError)
    # The first of these where frames are missing.
    return (*builtin, StopIteration, struct.error, zlib.error, BytesLengthException, InvalidDicomError)


@contextlib.contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """Turns what a missing or garbled attribute raises into an error that names the file."""
    try:
        yield
    except ScanError:
        raise
    except damage_errors() as error:
        raise ScanError(
            f"decode: {path}: the DICOM file lacks an attribute, or has a wrong one ({excerpt(error)}); export it again"
        ) from None


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM: it has the mark, or begins as a file does from which the mark was removed.

    Raises:
        ScanError: the file cannot be read.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(_MARK_AT + len(_MARK))
    return start[_MARK_AT:] == _MARK or _begins_without_mark(start)


def _begins_without_mark(start: bytes) -> bool:
    """Whether the first bytes are an element of the first groups, with its type in letters or without (implicit)."""
    if len(start) < 8 or start[:2] not in _FIRST_GROUPS:
        return False
    order: Literal["little", "big"] = "big" if start[:2] == _FIRST_GROUPS[2] else "little"
    is_explicit = start[4:6].isalpha() and start[4:6].isupper()
    length = int.from_bytes(start[6:8] if is_explicit else start[4:8], order)
    # Of an even length, as all elements are; the element number is that of a text, a date or a length.
    return length % 2 == 0 and 0 < length <= _LONGEST_FIRST_ELEMENT and int.from_bytes(start[2:4], order) < 0x1000


def files_in(folder: Path) -> list[Path]:
    """The files in a folder, not below it, sorted; without hidden ones, which file managers leave there.

    Raises:
        ScanError: the folder cannot be read.
    """
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_file())
    except OSError as error:
        raise ScanError(f"decode: {folder} cannot be read ({error.strerror}); check its permissions") from None


def read_slice(path: Path) -> Slice | None:
    """What the file says about its image, or None if it holds no image of a scan. Reads no pixels.

    Raises:
        ScanError: pydicom is not installed, or the file is damaged.
    """
    with named_damage(path):
        return _slice(path, read_dataset(path, tags=_TAGS))


def _slice(path: Path, dataset: Any) -> Slice | None:
    fields = _Fields(path, dataset)
    modality = fields.text("Modality")
    if modality in _OTHER_MODALITIES or "Rows" not in dataset:
        return None
    syntax = str(dataset.file_meta.TransferSyntaxUID)
    steps = [fields.numbers(name) for name in ("SpacingBetweenSlices", "SliceThickness")]
    number, has_table = fields.value("InstanceNumber"), bool(dataset.get("ModalityLUTSequence"))
    return Slice(
        path=path,
        uid=fields.text("SOPInstanceUID"),
        patient_id=fields.text("PatientID"),
        modality=modality or "image",
        series_uid=fields.text("SeriesInstanceUID"),
        series_number=fields.text("SeriesNumber"),
        description=fields.text("SeriesDescription"),
        position_mm=fields.numbers("ImagePositionPatient", 3),
        directions=fields.numbers("ImageOrientationPatient", 6),
        spacing_mm=fields.numbers("PixelSpacing", 2),
        step_mm=next((abs(step[0]) for step in steps if step and step[0]), None),
        shape=(fields.whole("Rows", 0), fields.whole("Columns", 0)),
        num_frames=int((fields.numbers("NumberOfFrames", 1) or (1,))[0]),
        num_samples=fields.whole("SamplesPerPixel", 1),
        bits=(fields.whole("BitsAllocated", 16), fields.whole("BitsStored", fields.whole("BitsAllocated", 16))),
        is_signed=fields.whole("PixelRepresentation", 0) == 1,
        slope=1.0 if has_table else (fields.numbers("RescaleSlope", 1) or (1.0,))[0],
        inter=0.0 if has_table else (fields.numbers("RescaleIntercept", 1) or (0.0,))[0],
        has_table=has_table,
        photometric=fields.text("PhotometricInterpretation"),
        image_type=tuple(word.strip() for word in fields.text("ImageType").split("\\")),
        syntax=syntax,
        cannot_decode=_missing_plugin(syntax),
        apart=tuple((name, value) for name in APART if (value := fields.value(name)) != ""),
        number=number if isinstance(number, float) else -1.0,
    )


def read_dataset(path: Path, *, tags: tuple[str, ...] = (), with_pixels: bool = True) -> Any:
    """The pydicom data set of a file; only these tags, where any are named.

    Raises:
        ScanError: pydicom is not installed, or the file is damaged.
    """
    try:
        import pydicom
        from pydicom.uid import UID
    except ImportError:
        raise ScanError(
            f"decode: {path}: reading DICOM needs pydicom, which is not installed; pip install 'voxelocity[formats]'"
        ) from None
    try:
        check_deflated(path)
        wants_pixels = with_pixels and (not tags or "PixelData" in tags)
        # By force, files without a mark are read too; others are never taken for DICOM (`is_dicom`).
        dataset = pydicom.dcmread(
            path, stop_before_pixels=not wants_pixels, specific_tags=list(tags) or None, force=is_dicom(path)
        )
        if "TransferSyntaxUID" not in dataset.file_meta:
            dataset.file_meta.TransferSyntaxUID = UID(_SYNTAXES[dataset.original_encoding])
        return dataset
    except OSError as error:
        reason = error.strerror or str(error)
    except damage_errors() as error:
        reason = str(error) or type(error).__name__
    raise ScanError(f"decode: {path}: the DICOM file cannot be read ({excerpt(reason)}); copy or export it again")


class _Fields:
    """Values of a data set, parsed from their bytes: pydicom's own conversion warns about harmless ones."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self._path, self._dataset = path, dataset

    def text(self, keyword: str) -> str:
        value = self._value(keyword)
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
        return text.strip(" \0")

    def numbers(self, keyword: str, count: int | None = None) -> tuple[float, ...] | None:
        """The decimal numbers of a text field; None if it is missing or empty."""
        text = self.text(keyword)
        if not text:
            return None
        try:
            values = tuple(float(part) for part in text.split("\\"))
        except ValueError:
            values = ()
        if not np.isfinite(values or (np.nan,)).all() or (count is not None and len(values) != count):
            raise ScanError(
                f"decode: {self._path}: {keyword} is {shortened(text)}, which is not {count or 'a list of'} finite "
                "number(s); export the file again"
            )
        return values

    def value(self, keyword: str) -> float | str:
        """The number of a field, also of a binary one; its text if it is none, "" if it is missing or empty."""
        raw = self._value(keyword)
        if isinstance(raw, bytes) and keyword == "DiffusionBValue":
            order = "<" if self._dataset.get_item(keyword).is_little_endian else ">"
            return struct.unpack(f"{order}d", raw)[0] if len(raw) == 8 else ""
        text = self.text(keyword)
        try:
            return float(text) if np.isfinite(float(text)) else text
        except ValueError:
            return text

    def whole(self, keyword: str, default: int) -> int:
        """The number of a binary field."""
        value = self._value(keyword)
        if not value:
            return default
        if isinstance(value, bytes):
            is_little_endian = self._dataset.get_item(keyword).is_little_endian
            return int.from_bytes(value[:2], "little" if is_little_endian else "big")
        return int(value)

    def _value(self, keyword: str) -> Any:
        return self._dataset.get_item(keyword).value if keyword in self._dataset else None


def _missing_plugin(syntax: str) -> str:
    """The name of the compression if no installed plugin can undo it."""
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    if not UID(syntax).is_transfer_syntax:
        return f"transfer syntax {shortened(syntax)}"
    if not UID(syntax).is_compressed or syntax in LOSSLESS_JPEG:
        return ""
    try:
        is_available = bool(get_decoder(UID(syntax)).is_available)
    except NotImplementedError:
        is_available = False
    return "" if is_available else str(UID(syntax).name)


def numbers_of(path: Path, dataset: Any, keyword: str, count: int | None = None) -> tuple[float, ...]:
    """The decimal numbers of a field, also of one inside a sequence.

    Raises:
        ScanError: the field is missing or holds other numbers.
    """
    values = _Fields(path, dataset).numbers(keyword, count)
    if values is None:
        raise ScanError(f"decode: {path}: {keyword} is missing; export the file again")
    return values
