"""The stored values of DICOM files: the frames of images, the tiles of mosaics, and the masks of segmentations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import Slice, damage_errors, named_damage, read_dataset
from voxelocity.data.decode.dicom.lossless_jpeg import SYNTAXES as LOSSLESS_JPEG
from voxelocity.data.decode.dicom.lossless_jpeg import decode_lossless_jpeg
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt, shortened

_UNDEFINED_LENGTH = 0xFFFFFFFF


def read_frames(slice_: Slice) -> Array:
    """The stored values (frames, rows, columns) of the file of a slice, before rescaling; tiles of a mosaic are frames.

    They are of the dtype that the header announces, without the bits above those stored; or the values of a table that
    the file has for them, as uint16.

    Raises:
        ScanError: the pixels are missing, truncated or damaged.
    """
    from pydicom.uid import UID

    side, (rows, columns), (allocated, stored_bits) = max(1, slice_.num_tiles), slice_.shape, slice_.bits
    shape = (slice_.num_stored, side * rows, side * columns)
    with named_damage(slice_.path):
        # To undo a compression, pydicom needs more of the file.
        needs_all = UID(slice_.syntax).is_compressed or slice_.has_table
        dataset = read_dataset(slice_.path, tags=() if needs_all else ("PixelData",))
        frames = _frames(slice_.path, dataset, shape, slice_.stored_dtype)
        tiles: Array = frames.reshape(-1, side, rows, side, columns).swapaxes(2, 3).reshape(-1, rows, columns)
        # An overlay may lie above them, or no sign.
        unused = allocated - stored_bits
        tiles = (tiles << unused) >> unused if unused else tiles
        return _looked_up(tiles, dataset) if slice_.has_table else tiles


def _looked_up(stored: Array, dataset: Any) -> Array:
    """What the table of a file (DICOM PS3.3, C.11.1) has for its values, uint16; beyond it, its first or last entry."""
    table = dataset.ModalityLUTSequence[0]
    num_entries, first, num_bits = (int(number) for number in table.LUTDescriptor)
    num_entries, content = num_entries or 1 << 16, table.LUTData
    if isinstance(content, bytes):
        # Entries of 8 bits may be packed, two in a word.
        is_packed = num_bits == 8 and len(content) < 2 * num_entries
        order = "<" if dataset.original_encoding[1] else ">"
        content = np.frombuffer(content, "u1" if is_packed else f"{order}u2")
    entries = np.asarray(content, dtype=np.uint16)[:num_entries]
    found: Array = entries[np.clip(stored.astype(np.int64) - first, 0, len(entries) - 1)]
    return found


def mask_frames(path: Path, dataset: Any) -> Iterator[Array]:
    """The frames (rows, columns) of a segmentation, one after the other; nonzero where a segment is.

    Raises:
        ScanError: the pixels are missing or damaged, or their number is not that of the frames that are described.
    """
    from pydicom.uid import UID

    num_frames, (rows, columns) = check_num_frames(path, dataset), (int(dataset.Rows), int(dataset.Columns))
    num_bits, is_compressed = int(dataset.BitsAllocated), UID(dataset.file_meta.TransferSyntaxUID).is_compressed
    num_bytes, num_expected = len(dataset.PixelData), -(-num_frames * rows * columns * num_bits // 8)
    # A byte may follow, as lengths are even.
    if not is_compressed and not num_expected <= num_bytes <= num_expected + 1:
        raise ScanError(
            f"decode: {path}: {num_frames} frames take {num_expected:,} bytes of pixels, and the file holds "
            f"{num_bytes:,}; it is truncated or damaged: copy or export it again"
        )
    if num_bits == 1 and not is_compressed:
        return _packed_masks(dataset.PixelData, num_frames, (rows, columns))
    frames = _frames(path, dataset, (num_frames, rows, columns), np.dtype(f"uint{max(8, num_bits)}"))
    # Of probabilities and occupancies, what is more likely inside than outside.
    is_fractional = str(dataset.get("SegmentationType", "")) == "FRACTIONAL"
    return iter(frames >= int(dataset.get("MaximumFractionalValue", 255)) / 2 if is_fractional else frames)


def check_num_frames(path: Path, dataset: Any) -> int:
    """How many frames a file describes.

    Raises:
        ScanError: none, or another number than it says that it has.
    """
    num_described = len(dataset.PerFrameFunctionalGroupsSequence)
    num_frames = int(dataset.get("NumberOfFrames") or (1 if num_described == 1 else 0))
    if num_frames != num_described or num_frames < 1:
        raise ScanError(
            f"decode: {path}: the file says that it has {excerpt(dataset.get('NumberOfFrames', 'no'))} frames "
            f"(NumberOfFrames), and describes {num_described}; it is incomplete or damaged: export it again"
        )
    return num_frames


def _frames(path: Path, dataset: Any, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    from pydicom.encaps import generate_frames
    from pydicom.uid import UID

    syntax = UID(dataset.file_meta.TransferSyntaxUID)
    if "PixelData" not in dataset:
        raise ScanError(f"decode: {path}: the file holds no pixels (PixelData); copy or export it again")
    if syntax.is_compressed:
        try:
            if syntax in LOSSLESS_JPEG:
                streams = itertools.islice(generate_frames(dataset.PixelData, number_of_frames=shape[0]), shape[0])
                frames = np.stack([decode_lossless_jpeg(part, shape[1:], where=f"decode: {path}:") for part in streams])
            else:
                frames = dataset.pixel_array
            return frames.astype(dtype, copy=False).reshape(shape)
        except damage_errors() as error:
            raise ScanError(
                f"decode: {path}: the compressed pixels cannot be read ({excerpt(error) or 'frames are missing'}); "
                "copy or export the file again"
            ) from None
    element = dataset.get_item("PixelData")
    if getattr(element, "length", 0) == _UNDEFINED_LENGTH:
        raise ScanError(
            f"decode: {path}: the pixels are compressed, but the file does not say how (transfer syntax "
            f"{shortened(syntax)}); export it again with its file meta information"
        )
    content: bytes = element.value or b""
    num_values = shape[0] * shape[1] * shape[2]
    if len(content) < (num_expected := num_values * dtype.itemsize):
        raise ScanError(
            f"decode: {path}: the file is truncated: {num_expected:,} bytes of pixels expected, {len(content):,} "
            "found; copy or export it again"
        )
    stored = np.frombuffer(content, dtype.newbyteorder("<" if syntax.is_little_endian else ">"), num_values)
    return stored.reshape(shape)


def _packed_masks(pixels: bytes, num_frames: int, shape: tuple[int, int]) -> Iterator[Array]:
    """Frames that follow each other bit by bit; one at a time takes an eighth of the memory of all."""
    packed = np.frombuffer(pixels, dtype=np.uint8)
    num_bits = shape[0] * shape[1]
    for start in range(0, num_frames * num_bits, num_bits):
        bits = np.unpackbits(packed[start // 8 : -(-(start + num_bits) // 8)], bitorder="little")
        yield bits[start % 8 : start % 8 + num_bits].reshape(shape)
