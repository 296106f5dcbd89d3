"""Enhanced multi-frame DICOM: the frames of one file as slices, each with its own place.

Source: DICOM PS3.3, C.7.6.16 (Multi-frame Functional Groups): what all frames share stands once, the rest for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import Slice, damage_errors, named_damage, numbers_of, read_dataset, whole_bits
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import excerpt

_SHARED, _PER_FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
_MOST_FRAMES = 1 << 16


def frames_as_slices(file: Slice) -> list[Slice]:
    """The frames of a file, in its order; the file itself where its frames have no places of their own.

    Raises:
        ScanError: the file is damaged, or describes another number of frames than it has.
    """
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


def _frame(file: Slice, index: int, groups: Sequence[Any]) -> Slice:
    def numbers(sequence: str, keyword: str, count: int) -> tuple[float, ...] | None:
        """Of the frame's own group, else of what all share."""
        for group in groups:
            for item in (group.get(sequence) or ()) if group is not None else ():
                if keyword in item:
                    return numbers_of(file.path, item, keyword, count)
        return None

    steps = [numbers("PixelMeasuresSequence", name, 1) for name in ("SpacingBetweenSlices", "SliceThickness")]
    slope = numbers("PixelValueTransformationSequence", "RescaleSlope", 1)
    inter = numbers("PixelValueTransformationSequence", "RescaleIntercept", 1)
    return replace(
        file,
        uid=f"{file.uid}.{index + 1}",
        frame=index,
        num_frames=1,
        position_mm=numbers("PlanePositionSequence", "ImagePositionPatient", 3),
        directions=numbers("PlaneOrientationSequence", "ImageOrientationPatient", 6),
        spacing_mm=numbers("PixelMeasuresSequence", "PixelSpacing", 2),
        step_mm=next((abs(step[0]) for step in steps if step and step[0]), None),
        slope=file.slope if slope is None else slope[0],
        inter=file.inter if inter is None else inter[0],
    )


def read_all_frames(slice_: Slice, num_frames: int) -> Array:
    """The stored values (frames, rows, columns) of the file of a frame.

    Raises:
        ScanError: the pixels are missing, truncated or damaged.
    """
    from pydicom.uid import UID

    path, shape = slice_.path, (num_frames, *slice_.shape)
    with named_damage(path):
        dataset = read_dataset(path)
        if "PixelData" not in dataset:
            raise ScanError(f"decode: {path}: the file holds no pixels (PixelData); copy or export it again")
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
