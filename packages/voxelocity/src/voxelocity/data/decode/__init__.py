"""File bytes to arrays, and arrays to files. Knows nothing of what happens to the voxels.

- `formats` is the table of formats, with a `codec` for each: `nifti` (and Analyze), `mgh`, `minc` (all unpacked by
  `gunzip`), `itk` (NRRD and MHA; `itk_text` checks headers first, `detached` their files of voxels), `dicom.series`
  (`frames` of a file and tiles of a `mosaic` are its slices, `volumes` and `order` place them, `pixels` has their
  values). Each gives a `header` without voxels, then the voxels.
- `case`: all files of a case on one grid; `grids` distinguishes turned ones, `labels` maps values to classes, `canvas`
  makes one label of structures, `notes` reports each kind of change once. `write` writes predictions.

A format's library is imported in one module, when a scan needs it.
"""

from voxelocity.data.decode.case import read_case, spec_of
from voxelocity.data.decode.dicom.files import is_dicom
from voxelocity.data.decode.dicom.series import SeriesHeader, holds_series, series_in, series_text
from voxelocity.data.decode.dicom.structures import StructuresHeader, read_structures_header
from voxelocity.data.decode.dicom.write import can_write_segmentations, what_segmentation_lacks, write_segmentation
from voxelocity.data.decode.dicom.write_contours import what_contours_lack, write_contours
from voxelocity.data.decode.formats import format_of, read_header, read_scan, source_files
from voxelocity.data.decode.gunzip import read_all_unpacked, read_unpacked
from voxelocity.data.decode.header import HOW_TO_CONVERT, ScanHeader
from voxelocity.data.decode.named_labels import label_values_in
from voxelocity.data.decode.write import write_maps, write_scan

__all__ = [
    "HOW_TO_CONVERT",
    "ScanHeader",
    "SeriesHeader",
    "StructuresHeader",
    "can_write_segmentations",
    "format_of",
    "holds_series",
    "is_dicom",
    "label_values_in",
    "read_all_unpacked",
    "read_case",
    "read_header",
    "read_scan",
    "read_structures_header",
    "read_unpacked",
    "series_in",
    "series_text",
    "source_files",
    "spec_of",
    "what_contours_lack",
    "what_segmentation_lacks",
    "write_contours",
    "write_maps",
    "write_scan",
    "write_segmentation",
]
