"""A segmentation as RTSTRUCT: closed contours of each class on each slice of its series, through pydicom alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.contours import contours_of
from voxelocity.data.decode.dicom.series import SeriesHeader
from voxelocity.data.decode.dicom.write import (
    MAY_BE_EMPTY,
    SERIES_NUMBER,
    lacking,
    segment_name,
    sources_of,
    write_dicom,
)
from voxelocity.data.decode.label_tables import class_color
from voxelocity_observe.core.environment import environment

# What a decimal string holds in its 16 characters, sign and exponent included: 0.1 µm at 10 km.
_COORDINATE = ".10g"

Box = tuple[slice, ...]


def what_contours_lack(like: SeriesHeader) -> str:
    """Why no RTSTRUCT of this series can be made, with the attributes that its files lack; "" if one can.

    Raises:
        ScanError: a file of the series cannot be read.
    """
    return lacking([*sources_of(like).values()])


def write_contours(path: Path, classes_xyz: Array, like: SeriesHeader, names: Sequence[str]) -> None:
    """Writes class indices as an RTSTRUCT of a series: a region of each class, empty ones without contours.

    Region k is class k and has its name; 0 is the background. Contours follow the edges of pixels, in the planes of the
    slices that they refer to; holes are joined to the border around them (`contours_of`). The file appears whole or not
    at all.

    Args:
        path: replaced if it exists; its folder must exist.
        classes_xyz: (x, y, z) class indices on the grid of the series.
        like: the header of the series.
        names: of the classes, without the background.

    Raises:
        OutputError: the file cannot be written.
        ScanError: a file of the series cannot be read.
    """
    write_dicom(path, _structures(sources_of(like), classes_xyz, like, names))


def _structures(sources: Mapping[Path, Any], classes_xyz: Array, like: SeriesHeader, names: Sequence[str]) -> Any:
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ImplicitVRLittleEndian, RTStructureSetStorage, generate_uid
    from scipy.ndimage import find_objects

    first, version = sources[like.slices[0].path], str(environment()["voxelocity"])
    images = [_image(sources[slice_.path], slice_.frame) for slice_ in like.slices]
    found = _item(
        SpecificCharacterSet="ISO_IR 192",
        **{name: str(first.get(name) or "") for name in MAY_BE_EMPTY},
        SOPClassUID=RTStructureSetStorage,
        SOPInstanceUID=generate_uid(),
        Modality="RTSTRUCT",
        StudyInstanceUID=first.StudyInstanceUID,
        SeriesInstanceUID=generate_uid(),
        SeriesNumber=SERIES_NUMBER,
        SeriesDescription="Segmentation by Voxelocity",
        FrameOfReferenceUID=first.FrameOfReferenceUID,
        PositionReferenceIndicator="",
        Manufacturer="Voxelocity",
        ManufacturerModelName="Voxelocity",
        SoftwareVersions=version,
        OperatorsName="",
        StructureSetLabel="SEGMENTATION",
        StructureSetDate="",
        StructureSetTime="",
        ApprovalStatus="UNAPPROVED",
        ReferencedFrameOfReferenceSequence=[_drawn_on(first, images)],
    )
    found.file_meta = FileMetaDataset()
    # Explicit lengths of 16 bits are too short for a long contour.
    found.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    numbers = range(1, len(names) + 1)
    found.StructureSetROISequence = [
        _item(
            ROINumber=number,
            ReferencedFrameOfReferenceUID=first.FrameOfReferenceUID,
            ROIName=segment_name(name),
            ROIGenerationAlgorithm="AUTOMATIC",
        )
        for number, name in zip(numbers, names, strict=True)
    ]
    boxes = find_objects(classes_xyz, max_label=len(names))
    found.ROIContourSequence = [
        _contours(number, box, classes_xyz, like, images) for number, box in zip(numbers, boxes, strict=True)
    ]
    found.RTROIObservationsSequence = [
        _item(ObservationNumber=number, ReferencedROINumber=number, RTROIInterpretedType="", ROIInterpreter="")
        for number in numbers
    ]
    return found


def _contours(
    number: int, box: Box | None, classes_xyz: Array, like: SeriesHeader, images: Sequence[Mapping[str, Any]]
) -> Any:
    """The item of a region, with its contours on all slices; `box` is around its voxels, if it has any."""
    found = [
        _contour(images[plane], points_mm)
        for plane, points_mm in (() if box is None else _placed(classes_xyz[box] == number, box, like))
    ]
    region = _item(ReferencedROINumber=number, ROIDisplayColor=list(class_color(number)))
    if found:
        region.ContourSequence = found
    return region


def _contour(image: Mapping[str, Any], points_mm: Array) -> Any:
    from pydicom.dataelem import DataElement
    from pydicom.tag import Tag

    found = _item(
        ContourImageSequence=[_item(**image)],
        ContourGeometricType="CLOSED_PLANAR",
        NumberOfContourPoints=len(points_mm),
    )
    numbers = "\\".join([format(value, _COORDINATE) for value in points_mm.reshape(-1).tolist()]).encode()
    # As bytes of an unknown type: the file keeps no types, and pydicom would check each number, in most of the time.
    found.add(DataElement(Tag("ContourData"), "UN", numbers + b" " * (len(numbers) % 2)))
    return found


def _placed(mask_xyz: Array, box: Box, like: SeriesHeader) -> Iterator[tuple[int, Array]]:
    """The plane of each contour of a mask in its box, and its points (n, 3) in LPS mm."""
    to_mm = np.diag([-1.0, -1.0, 1.0]) @ like.grid.matrix[:3, :2]
    corner = np.array([part.start for part in box[:2]])
    for plane, mask_xy in enumerate(np.moveaxis(mask_xyz, 2, 0), start=box[2].start):
        for points in contours_of(mask_xy):
            # Where the slice lies, not its place on the grid of the series: readers look for the plane of a contour.
            yield plane, (points + corner) @ to_mm.T + np.array(like.slices[plane].position_mm)


def _image(source: Any, frame: int | None) -> dict[str, Any]:
    """What refers to an image: its file, and the frame of one with several."""
    refers = {"ReferencedSOPClassUID": source.SOPClassUID, "ReferencedSOPInstanceUID": source.SOPInstanceUID}
    # Of parts of one image, such as a mosaic, none is a frame.
    has_frames = frame is not None and "PerFrameFunctionalGroupsSequence" in source
    return refers | ({"ReferencedFrameNumber": frame + 1} if frame is not None and has_frames else {})


def _drawn_on(first: Any, images: Sequence[Mapping[str, Any]]) -> Any:
    """The item that names the frame of reference, the study and the series, with all of its images."""
    series = _item(SeriesInstanceUID=first.SeriesInstanceUID, ContourImageSequence=[_item(**image) for image in images])
    study = _item(
        # Detached Study Management, as the standard keeps it here.
        ReferencedSOPClassUID="1.2.840.10008.3.1.2.3.1",
        ReferencedSOPInstanceUID=first.StudyInstanceUID,
        RTReferencedSeriesSequence=[series],
    )
    return _item(FrameOfReferenceUID=first.FrameOfReferenceUID, RTReferencedStudySequence=[study])


def _item(**values: Any) -> Any:
    """A data set with these attributes."""
    from pydicom.dataset import Dataset

    found = Dataset()
    for name, value in values.items():
        setattr(found, name, value)
    return found
