"""DICOM through pydicom, which only `files` imports: the slices of a series as one volume, and segmentations of it."""

from voxelocity.data.decode.dicom.files import is_dicom
from voxelocity.data.decode.dicom.series import holds_series, series_in

__all__ = ["holds_series", "is_dicom", "series_in"]
