"""A segmentation as DICOM SEG, through highdicom, which only this module imports."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxelocity.core.errors import OutputError, ScanError
from voxelocity.core.volume import Array
from voxelocity.core.whole_file import whole_file
from voxelocity.data.decode.dicom.files import read_dataset
from voxelocity.data.decode.dicom.series import SeriesHeader
from voxelocity.observe import environment

# Of the text and of the code that name a segment (value representations LO and SH).
_LONGEST_NAME = 64
# As dcmqi and 3D Slicer number the series that they add to a study.
_SERIES_NUMBER = 300
_CODING_SCHEME = "99VOXELOCITY"


def can_write_segmentations() -> bool:
    """Whether highdicom is installed; it is not imported."""
    return importlib.util.find_spec("highdicom") is not None


def write_segmentation(path: Path, classes_xyz: Array, like: SeriesHeader, names: Sequence[str]) -> None:
    """Writes class indices as a DICOM SEG of a series: one binary segment for each class, empty ones included.

    Segment k is class k and has its name; 0 is the background, and no segment. Each frame refers to its slice of the
    series, in whose study and frame of reference the object lies. The file appears whole or not at all.

    Args:
        path: replaced if it exists; its folder must exist.
        classes_xyz: (x, y, z) uint8 on the grid of the series.
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
    sources = [_repeatable(read_dataset(one.path, with_pixels=False)) for one in like.slices]
    try:
        # Warnings about names and lengths of fields that are the series' own, and stay as they are.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            segmentation = _segmentation(sources, classes_xyz.transpose(2, 1, 0), names)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ScanError(
            f"decode: {path}: no DICOM SEG can be made for the series in {like.path} ({error}); complete the "
            "attributes of its files, or write .nii.gz"
        ) from None
    try:
        with whole_file(path) as file:
            segmentation.save_as(file)
    except OSError as error:
        raise OutputError(
            f"decode: cannot write {path} ({error.strerror}); make space or choose a folder that can be written"
        ) from None


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
            segment_label=_text(name),
            segmented_property_category=codes.SCT.AnatomicalStructure,
            # What a class is, only its name says, and no standard has a code for every name.
            segmented_property_type=highdicom.sr.CodedConcept(str(number), _CODING_SCHEME, _text(name)),
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
        series_number=_SERIES_NUMBER,
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
    """The data set itself, without an empty character set, which highdicom refuses to repeat."""
    if not source.get("SpecificCharacterSet", "set"):
        del source.SpecificCharacterSet
    return source


def _text(name: str) -> str:
    """A class name as DICOM can hold it: without the character that separates values, not too long, not empty."""
    return name.replace("\\", "/").strip()[:_LONGEST_NAME] or "unnamed"
