"""A segmentation as DICOM SEG, through highdicom, which only this module imports; and what all objects repeat."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import read_dataset
from voxelocity.data.decode.dicom.series import SeriesHeader
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import OutputError, ScanError
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.whole_file import whole_file

# Of the text and of the code that name a segment (value representations LO and SH).
_LONGEST_NAME = 64
# From highdicom and pydicom, on attributes that are missing or have values that the standard does not know.
_UNREPEATABLE = (AttributeError, KeyError, TypeError, ValueError)
# As dcmqi and 3D Slicer number the series that they add to a study.
SERIES_NUMBER = 300
_CODING_SCHEME = "99VOXELOCITY"
# What an object repeats of its series. The first may be empty by the standard (type 2), and de-identified files often
# lack them; the others must have a value (type 1).
MAY_BE_EMPTY = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex"),
    *("StudyID", "StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName"),
)
_NEEDED = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")


def can_write_segmentations() -> bool:
    """Whether highdicom is installed; it is not imported."""
    return importlib.util.find_spec("highdicom") is not None


def what_segmentation_lacks(like: SeriesHeader) -> str:
    """Why no DICOM SEG of this series can be made, with all attributes that its files lack; "" if one can.

    Opens every file of the series, up to the pixels. highdicom must be installed.

    Raises:
        ScanError: a file of the series cannot be read.
    """
    sources = [*sources_of(like).values()]
    if reason := _cannot_refer(like, sources) or lacking(sources):
        return reason
    # highdicom checks more than names, in ways that only it knows. Slices of one voxel take it no time.
    for source in sources:
        source.Rows = source.Columns = 1
    try:
        _quiet_segmentation(sources, np.zeros((_num_frames(sources), 1, 1), np.uint8), ["a"])
    except _UNREPEATABLE as error:
        return f"highdicom refuses them: {excerpt(error)}"
    return ""


def write_segmentation(path: Path, classes_xyz: Array, like: SeriesHeader, names: Sequence[str]) -> None:
    """Writes class indices as a DICOM SEG of a series: one binary segment for each class, empty ones included.

    Segment k is class k and has its name; 0 is the background, and no segment. Each frame refers to its slice of the
    series, in whose study and frame of reference the object lies. The file appears whole or not at all.

    Args:
        path: replaced if it exists; its folder must exist.
        classes_xyz: (x, y, z) class indices on the grid of the series.
        like: the header of the series.
        names: of the classes, without the background.

    Raises:
        OutputError: highdicom is not installed, or the file cannot be written.
        ScanError: a file of the series cannot be read, or the series lacks what the object must repeat.
    """
    if not can_write_segmentations():
        raise OutputError(
            f"decode: {path}: writing DICOM SEG needs highdicom, which is not installed; "
            "pip install 'voxelocity[formats]', or choose another format"
        )
    sources = [*sources_of(like).values()]
    try:
        segmentation = _quiet_segmentation(sources, _frames(classes_xyz.transpose(2, 1, 0), like, sources), names)
    except _UNREPEATABLE as error:
        raise ScanError(
            f"decode: {path}: no DICOM SEG can be made for the series in {like.path} ({excerpt(error)}); complete "
            "the attributes of its files, or write .nii.gz"
        ) from None
    write_dicom(path, segmentation)


def sources_of(like: SeriesHeader) -> dict[Path, Any]:
    """The data sets of the files of a series by path, in the order of its planes, up to the pixels.

    What may be empty in them is there, so that objects can repeat it.

    Raises:
        ScanError: a file of the series cannot be read.
    """
    paths = dict.fromkeys(slice_.path for slice_ in like.slices)
    return {path: _repeatable(read_dataset(path, with_pixels=False)) for path in paths}


def lacking(sources: Sequence[Any]) -> str:
    """Why no object of a series can be made: what its files lack; "" if they have all that it must repeat."""
    missing = [name for name in _NEEDED if not all(source.get(name) for source in sources)]
    return f"its files lack {', '.join(missing)}" if missing else ""


def write_dicom(path: Path, dataset: Any) -> None:
    """Writes a data set as a file, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            dataset.save_as(file, enforce_file_format=True)
    except OSError as error:
        raise OutputError(
            f"decode: cannot write {path} ({error.strerror}); make space or choose a folder that can be written"
        ) from None


def _cannot_refer(like: SeriesHeader, sources: Sequence[Any]) -> str:
    """Why the frames of a SEG cannot refer to the images of a series; "" if they can."""
    if all(slice_.frame is None for slice_ in like.slices):
        return ""
    if len(sources) > 1:
        return "its slices are frames of several files"
    return "" if "PerFrameFunctionalGroupsSequence" in sources[0] else "its slices are parts of one image"


def _num_frames(sources: Sequence[Any]) -> int:
    """Of the images of a series: files, or the frames of a single one."""
    return max(len(sources), int(sources[0].get("NumberOfFrames") or 1))


def _frames(classes_zyx: Array, like: SeriesHeader, sources: Sequence[Any]) -> Array:
    """The planes in the order of the images of the series, of which a file with frames may have others too."""
    places = [slice_.frame for slice_ in like.slices if slice_.frame is not None]
    if not places:
        return classes_zyx
    frames = np.zeros((_num_frames(sources), *classes_zyx.shape[1:]), dtype=classes_zyx.dtype)
    frames[places] = classes_zyx
    return frames


def _quiet_segmentation(sources: Sequence[Any], classes_zyx: Array, names: Sequence[str]) -> Any:
    # Warnings are about names and lengths of fields that are the series' own, and stay as they are.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _segmentation(sources, classes_zyx, names)


def _segmentation(sources: Sequence[Any], classes_zyx: Array, names: Sequence[str]) -> Any:
    import highdicom
    from pydicom.sr.codedict import codes

    version = str(environment()["voxelocity"])
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="Voxelocity", version=version, family=codes.DCM.ArtificialIntelligence
    )
    segments = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=segment_name(name),
            segmented_property_category=codes.SCT.AnatomicalStructure,
            # What a class is, only its name says, and no standard has a code for every name.
            segmented_property_type=highdicom.sr.CodedConcept(str(number), _CODING_SCHEME, segment_name(name)),
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for number, name in enumerate(names, start=1)
    ]
    return highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=classes_zyx,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=segments,
        series_instance_uid=highdicom.UID(),
        series_number=SERIES_NUMBER,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="Voxelocity",
        manufacturer_model_name="Voxelocity",
        software_versions=version,
        device_serial_number="0",
        # A segmentation needs a frame, even if all of them are empty.
        omit_empty_frames=bool(classes_zyx.any()),
        content_label="SEGMENTATION",
        content_description="Automatic segmentation",
        series_description="Segmentation by Voxelocity",
    )


def _repeatable(source: Any) -> Any:
    """The data set itself, as highdicom can repeat it: no empty character set, what may be empty there but empty."""
    if not source.get("SpecificCharacterSet", "set"):
        del source.SpecificCharacterSet
    for name in MAY_BE_EMPTY:
        if name not in source:
            setattr(source, name, "")
    return source


def segment_name(name: str) -> str:
    """A class name as DICOM can hold it: without the character that separates values, not too long, not empty."""
    return name.replace("\\", "/").strip()[:_LONGEST_NAME] or "unnamed"
