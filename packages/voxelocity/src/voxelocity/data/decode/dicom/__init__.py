"""DICOM through pydicom, which only `files` imports: the slices of a series as one volume, and segmentations of it."""
