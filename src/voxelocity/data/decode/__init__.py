"""File bytes to arrays, and arrays to files: NIfTI. Knows nothing about what happens to the voxels afterwards."""

from voxelocity.data.decode.case import read_case
from voxelocity.data.decode.gunzip import read_unpacked
from voxelocity.data.decode.header import HOW_TO_CONVERT, Placement, ScanHeader, read_header
from voxelocity.data.decode.nifti import label_values_in, read_scan
from voxelocity.data.decode.write import write_scan

__all__ = [
    "HOW_TO_CONVERT",
    "Placement",
    "ScanHeader",
    "label_values_in",
    "read_case",
    "read_header",
    "read_scan",
    "read_unpacked",
    "write_scan",
]
