"""DICOM files of several frames: those of an enhanced image are slices, each with its place, those of a SEG masks.

Source: DICOM PS3.3, C.7.6.16 (Multi-frame Functional Groups): what all frames share stands once, the rest for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import Slice, damage_errors, named_damage, numbers_of, read_dataset, whole_bits
from voxelocity.data.decode.dicom.lossless_jpeg import SYNTAXES as LOSSLESS_JPEG
from voxelocity.data.decode.dicom.lossless_jpeg import decode_lossless_jpeg
from voxelocity.data.decode.dicom.mosaic import is_mosaic, read_tiles, tiles_as_slices
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt

_SHARED, _PER_FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
_MOST_FRAMES = 1 << 16
# Where frames say what files of one slice each say of themselves.
_APART_OF_FRAMES = {
    "TemporalPositionIdentifier": (("FrameContentSequence", "TemporalPositionIndex"),),
    "DiffusionBValue": (("MRDiffusionSequence", "DiffusionBValue"),),
    "EchoTime": (("MREchoSequence", "EffectiveEchoTime"),),
    "TriggerTime": (("CardiacSynchronizationSequence", "NominalCardiacTriggerDelayTime"),),
    "AcquisitionNumber": (("FrameContentSequence", "FrameAcquisitionNumber"),),
    "ImageType": (("MRImageFrameTypeSequence", "FrameType"), ("CTImageFrameTypeSequence", "FrameType")),
}


def slices_of(file: Slice) -> list[Slice]:
    """The planes of a file: its frames in their order, tiles of a mosaic, or the one that it is.

    The file itself is returned where its frames have no places of their own, or its tiles cannot be placed.

    Raises:
        ScanError: the file is damaged, or describes another number of frames than it has.
    """
    if file.num_frames <= 1 and file.position_mm is not None:
        return tiles_as_slices(file) if is_mosaic(file) else [file]
    with named_damage(file.path):
        dataset = read_dataset(file.path, with_pixels=False)
        if _PER_FRAME not in dataset:
            return [file]
        groups = dataset[_PER_FRAME].value
        if len(groups) != file.num_frames or not 0 < len(groups) <= _MOST_FRAMES:
            raise ScanError(
                f"decode: {file.path}: the file says that it has {file.num_frames} frames (NumberOfFrames), and "
                f"describes {len(groups)}; it is incomplete or damaged: export it again"
            )
        shared = next(iter(dataset.get(_SHARED) or ()), None)
        return [_frame(file, index, (group, shared)) for index, group in enumerate(groups)]


def _holder(groups: Sequence[Any], sequence: str, keyword: str) -> Any:
    """The item that has a value: in the frame's own group, else in what all share; None without one."""
    for group in groups:
        for item in (group.get(sequence) or ()) if group is not None else ():
            if keyword in item:
                return item
    return None


def _apart(groups: Sequence[Any]) -> tuple[tuple[str, float | str], ...]:
    found: list[tuple[str, float | str]] = []
    for name, places in _APART_OF_FRAMES.items():
        for sequence, keyword in places:
            item = _holder(groups, sequence, keyword)
            value = None if item is None else item[keyword].value
            if isinstance(value, int | float):
                found.append((name, float(value)))
            elif value:
                found.append((name, "\\".join(map(str, value)) if not isinstance(value, str) else value))
    return tuple(found)


def _frame(file: Slice, index: int, groups: Sequence[Any]) -> Slice:
    def numbers(sequence: str, keyword: str, count: int) -> tuple[float, ...] | None:
        item = _holder(groups, sequence, keyword)
        return None if item is None else numbers_of(file.path, item, keyword, count)

    steps = [numbers("PixelMeasuresSequence", name, 1) for name in ("SpacingBetweenSlices", "SliceThickness")]
    slope = numbers("PixelValueTransformationSequence", "RescaleSlope", 1)
    inter = numbers("PixelValueTransformationSequence", "RescaleIntercept", 1)
    return replace(
        file,
        uid=f"{file.uid}.{index + 1}",
        apart=_apart(groups),
        number=float(index),
        frame=index,
        num_frames=1,
        num_stored=file.num_frames,
        position_mm=numbers("PlanePositionSequence", "ImagePositionPatient", 3),
        directions=numbers("PlaneOrientationSequence", "ImageOrientationPatient", 6),
        spacing_mm=numbers("PixelMeasuresSequence", "PixelSpacing", 2),
        step_mm=next((abs(step[0]) for step in steps if step and step[0]), None),
        slope=file.slope if slope is None else slope[0],
        inter=file.inter if inter is None else inter[0],
    )


def read_all_frames(slice_: Slice) -> Array:
    """The stored values (frames, rows, columns) of the file of a frame, or of the mosaic of a tile.

    Raises:
        ScanError: the pixels are missing, truncated or damaged.
    """
    if slice_.num_tiles:
        return read_tiles(slice_)
    from pydicom.uid import UID

    path, shape = slice_.path, (slice_.num_stored, *slice_.shape)
    with named_damage(path):
        dataset = read_dataset(path)
        if "PixelData" not in dataset:
            raise ScanError(f"decode: {path}: the file holds no pixels (PixelData); copy or export it again")
        if slice_.syntax in LOSSLESS_JPEG:
            from pydicom.encaps import generate_frames

            streams = generate_frames(dataset.PixelData, number_of_frames=slice_.num_stored)
            decoded = [decode_lossless_jpeg(stream, slice_.shape, where=f"decode: {path}:") for stream in streams]
            return whole_bits(np.stack(decoded).reshape(shape).astype(slice_.stored_dtype), slice_)
        if UID(slice_.syntax).is_compressed:
            try:
                frames: Array = np.asarray(dataset.pixel_array, dtype=slice_.stored_dtype).reshape(shape)
            except damage_errors() as error:
                raise ScanError(
                    f"decode: {path}: the compressed frames cannot be read ({excerpt(error)}); copy or export the file "
                    "again"
                ) from None
            return frames
        dtype = slice_.stored_dtype.newbyteorder("<" if UID(slice_.syntax).is_little_endian else ">")
        num_expected = int(np.prod(shape)) * dtype.itemsize
        if len(dataset.PixelData) < num_expected:
            raise ScanError(
                f"decode: {path}: the file is truncated: {num_expected:,} bytes of pixels expected, "
                f"{len(dataset.PixelData):,} found; copy or export it again"
            )
        stored = np.frombuffer(dataset.PixelData, dtype=dtype, count=int(np.prod(shape))).reshape(shape)
        return whole_bits(stored, slice_)


def frames_of(path: Path, dataset: Any) -> Iterator[Array]:
    """The frames (rows, columns) of a segmentation, one after the other; nonzero where a segment is.

    Raises:
        ScanError: the pixels are missing or damaged, or their number is not that of the frames that are described.
    """
    from pydicom.uid import UID

    shape = (int(dataset.Rows), int(dataset.Columns))
    num_described = len(dataset.PerFrameFunctionalGroupsSequence)
    num_frames = int(dataset.get("NumberOfFrames") or (1 if num_described == 1 else 0))
    if num_frames != num_described or num_frames < 1:
        raise ScanError(
            f"decode: {path}: the file says that it has {excerpt(dataset.get('NumberOfFrames', 'no'))} frames "
            f"(NumberOfFrames), and describes {num_described}; it is incomplete or damaged: export it again"
        )
    is_compressed, num_bits = UID(dataset.file_meta.TransferSyntaxUID).is_compressed, int(dataset.BitsAllocated)
    num_bytes, num_expected = len(dataset.PixelData), -(-num_frames * shape[0] * shape[1] * num_bits // 8)
    # A byte may follow, as lengths are even.
    if not is_compressed and not num_expected <= num_bytes <= num_expected + 1:
        raise ScanError(
            f"decode: {path}: {num_frames} frames take {num_expected:,} bytes of pixels, and the file holds "
            f"{num_bytes:,}; it is truncated or damaged: copy or export it again"
        )
    if num_bits == 1 and not is_compressed:
        return _packed_frames(dataset.PixelData, num_frames, shape)
    return _frames(path, dataset, (num_frames, *shape))


def _frames(path: Path, dataset: Any, shape: tuple[int, int, int]) -> Iterator[Array]:
    try:
        frames = np.asarray(dataset.pixel_array).reshape(shape)
    except damage_errors() as error:
        raise ScanError(f"decode: {path}: the frames cannot be read ({excerpt(error)}); export it again") from None
    # Of probabilities and occupancies, what is more likely inside than outside.
    least = int(dataset.get("MaximumFractionalValue", 255)) / 2
    is_fractional = str(dataset.get("SegmentationType", "")) == "FRACTIONAL"
    yield from (frame >= least if is_fractional else frame for frame in frames)


def _packed_frames(pixels: bytes, num_frames: int, shape: tuple[int, int]) -> Iterator[Array]:
    """Frames that follow each other bit by bit; one at a time takes an eighth of the memory of all."""
    packed = np.frombuffer(pixels, dtype=np.uint8)
    num_bits = shape[0] * shape[1]
    for start in range(0, num_frames * num_bits, num_bits):
        bits = np.unpackbits(packed[start // 8 : -(-(start + num_bits) // 8)], bitorder="little")
        yield bits[start % 8 : start % 8 + num_bits].reshape(shape)
