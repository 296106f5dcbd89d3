"""DICOM series made for tests: a few slices of known voxels, with any field changed; the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Grid
from voxelocity.data.decode.named_labels import read_named

ORIGIN_LPS = (-30.0, -20.0, 100.0)
STEP_MM, SPACING_MM = 2.5, (0.8, 0.6)
"""Between slices; between rows, between columns."""


def write_series(
    folder: Path,
    voxels_zyx: npt.NDArray[Any],
    *,
    name: str = "CT",
    places: Sequence[float] | None = None,
    edit: Callable[[int, Any], None] = lambda index, dataset: None,
    directions: Sequence[float] = (1, 0, 0, 0, 1, 0),
    shear_mm: float = 0.0,
) -> list[Path]:
    """Writes one file per plane, in an order of names that is not that of the places.

    Args:
        voxels_zyx: stored values, int16.
        name: of the series; equal names are one series.
        places: of each plane along the normal in steps, 0, 1, 2, ... if it is not given.
        edit: changes each data set before it is written.
        shear_mm: how far each plane is shifted against the one before it, along a row.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True, exist_ok=True)
    normal = np.cross(directions[:3], directions[3:])
    files = []
    for index, plane in enumerate(voxels_zyx):
        place = float(index if places is None else places[index])
        dataset = Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = CTImageStorage
        uid = generate_uid(entropy_srcs=[folder.parent.name, folder.name, name, str(index)])
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = uid
        dataset.SeriesInstanceUID = generate_uid(entropy_srcs=["series", name])
        dataset.StudyInstanceUID = dataset.FrameOfReferenceUID = UID("1.2.3.4")
        dataset.PatientID, dataset.PatientName = f"MRN-{folder.parent.name}", "Doe^Jane"
        dataset.PatientBirthDate = dataset.PatientSex = dataset.AccessionNumber = dataset.StudyID = ""
        dataset.StudyDate = dataset.StudyTime = dataset.ReferringPhysicianName = ""
        dataset.Modality, dataset.SeriesDescription, dataset.SeriesNumber = "CT", name, 3
        dataset.InstanceNumber = index + 1
        shift = place * (STEP_MM * normal + shear_mm * np.array(directions[:3]))
        dataset.ImagePositionPatient = [round(float(v), 6) for v in np.add(ORIGIN_LPS, shift)]
        dataset.ImageOrientationPatient = list(directions)
        dataset.PixelSpacing, dataset.SliceThickness = list(SPACING_MM), STEP_MM
        dataset.Rows, dataset.Columns = plane.shape
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
        dataset.PixelRepresentation = 1
        dataset.RescaleSlope, dataset.RescaleIntercept = 1, 0
        dataset.PixelData = plane.astype("<i2").tobytes()
        edit(index, dataset)
        # Names count down, so that they cannot be what sorts the planes.
        file = folder / f"{name}_{len(voxels_zyx) - index:03d}.dcm"
        dataset.save_as(file, enforce_file_format=True)
        files.append(file)
    return files


def named_label(
    path: Path, grid: Grid, values: Mapping[str, Any], *, note: Callable[[str, str], None] = lambda kind, text: None
) -> npt.NDArray[Any]:
    """The values (x, y, z) of structures that have names, as a case with this grid has them."""
    return read_named(path, (path, grid), values, note=note)


def write_enhanced(
    path: Path,
    voxels_zyx: npt.NDArray[Any],
    *,
    order: Sequence[int] | None = None,
    places: Sequence[float] | None = None,
    scalings: Sequence[tuple[float, float]] | None = None,
    edit: Callable[[Any], None] = lambda dataset: None,
) -> Path:
    """Writes all planes as the frames of one enhanced MR file, with the places that `write_series` gives them.

    Args:
        voxels_zyx: stored values, int16.
        order: in which planes are stored; as they lie if it is not given.
        places: of each plane along the normal in steps, as in `write_series`.
        scalings: slope and intercept of each plane; those of `write_series` if they are not given.
        edit: changes the data set before it is written.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.sequence import Sequence as Items
    from pydicom.uid import EnhancedMRImageStorage, ExplicitVRLittleEndian, generate_uid

    def item(**values: Any) -> Items:
        found = Dataset()
        for keyword, value in values.items():
            setattr(found, keyword, value)
        return Items([found])

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = EnhancedMRImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    dataset.SeriesInstanceUID = generate_uid(entropy_srcs=["enhanced", path.name])
    dataset.StudyInstanceUID = dataset.FrameOfReferenceUID = "1.2.3.4"
    dataset.PatientID, dataset.PatientName, dataset.Modality = "MRN", "Doe^Jane", "MR"
    dataset.SeriesDescription, dataset.SeriesNumber = "enhanced", 4
    dataset.Rows, dataset.Columns = voxels_zyx.shape[1:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 1
    order = list(range(len(voxels_zyx)) if order is None else order)
    dataset.NumberOfFrames = len(order)
    shared, frames = Dataset(), []
    shared.PlaneOrientationSequence = item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
    shared.PixelMeasuresSequence = item(PixelSpacing=list(SPACING_MM), SliceThickness=STEP_MM)
    for plane in order:
        frame, place = Dataset(), float(plane if places is None else places[plane])
        position = np.add(ORIGIN_LPS, [0.0, 0.0, place * STEP_MM])
        frame.PlanePositionSequence = item(ImagePositionPatient=[float(value) for value in position])
        slope, inter = (1.0, 0.0) if scalings is None else scalings[plane]
        frame.PixelValueTransformationSequence = item(RescaleSlope=slope, RescaleIntercept=inter, RescaleType="US")
        frames.append(frame)
    dataset.SharedFunctionalGroupsSequence, dataset.PerFrameFunctionalGroupsSequence = Items([shared]), Items(frames)
    dataset.PixelData = voxels_zyx[order].astype("<i2").tobytes()
    edit(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def fix_identity(path: Path) -> None:
    """Gives a DICOM object that was made now fixed UIDs and times, so that its bytes are the same every time."""
    import pydicom
    from pydicom.uid import UID

    dataset = pydicom.dcmread(path)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = UID("1.2.3.5")
    dataset.SeriesInstanceUID = UID("1.2.3.6")
    for element in dataset.iterall():
        if element.VR in ("DA", "TM", "DT") and element.value:
            element.value = {"DA": "20200101", "TM": "120000", "DT": "20200101120000"}[element.VR]
        # Of objects that the library makes besides its own.
        if element.keyword in ("DimensionOrganizationUID", "UID"):
            element.value = UID("1.2.3.7")
    dataset.save_as(path)
