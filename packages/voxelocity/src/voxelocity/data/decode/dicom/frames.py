"""Enhanced DICOM files, whose frames are slices, each with its place.

Source: DICOM PS3.3, C.7.6.16 (Multi-frame Functional Groups): what all frames share stands once, the rest for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from voxelocity.data.decode.dicom.files import Slice, named_damage, numbers_of, read_dataset
from voxelocity.data.decode.dicom.mosaic import is_mosaic, tiles_as_slices
from voxelocity.data.decode.dicom.pixels import check_num_frames

_SHARED, _PER_FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
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
        check_num_frames(file.path, dataset)
        shared = next(iter(dataset.get(_SHARED) or ()), None)
        return [_frame(file, index, (group, shared)) for index, group in enumerate(dataset[_PER_FRAME].value)]


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
