"""File bytes to arrays, and arrays to files: NIfTI, NRRD, MHA, DICOM. Knows nothing of what happens to the voxels."""

from voxelocity.data.decode.case import read_case
from voxelocity.data.decode.formats import NIFTI_ENDINGS, SCAN_ENDINGS, read_header, read_scan, source_files
from voxelocity.data.decode.gunzip import read_unpacked
from voxelocity.data.decode.header import HOW_TO_CONVERT, Placement, ScanHeader
from voxelocity.data.decode.labels import label_values_in
from voxelocity.data.decode.write import write_scan

__all__ = [
    "HOW_TO_CONVERT",
    "NIFTI_ENDINGS",
    "SCAN_ENDINGS",
    "Placement",
    "ScanHeader",
    "label_values_in",
    "read_case",
    "read_header",
    "read_scan",
    "read_unpacked",
    "source_files",
    "write_scan",
]
