"""DICOM through pydicom, which only `files` imports: the slices of a series as one volume, and segmentations of it."""

from voxelocity.data.decode.dicom.files import is_dicom
from voxelocity.data.decode.dicom.series import SeriesHeader, holds_series, series_in, series_text
from voxelocity.data.decode.dicom.structures import (
    StructuresHeader,
    needed_names,
    read_structures,
    read_structures_header,
)
from voxelocity.data.decode.dicom.write import can_write_segmentations, write_segmentation

__all__ = [
    "SeriesHeader",
    "StructuresHeader",
    "can_write_segmentations",
    "holds_series",
    "is_dicom",
    "needed_names",
    "read_structures",
    "read_structures_header",
    "series_in",
    "series_text",
    "write_segmentation",
]
