"""Labels that have names in place of values, structures of DICOM and folders of masks; and the values of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxelocity.core.scan_formats import DICOM
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid, slabs
from voxelocity.data.decode.canvas import LabelCanvas, NamedValues
from voxelocity.data.decode.dicom.structures import needed_names, paint_structures, read_structures_header
from voxelocity.data.decode.formats import format_of
from voxelocity.data.decode.labels import read_labels
from voxelocity.data.decode.mask_folder import masks_in, paint_masks
from voxelocity.data.decode.notes import Note, notes_about
from voxelocity_observe.core.errors import ScanError

_SLAB_VALUES = 1 << 20


def label_names_in(path: Path) -> tuple[str, ...] | None:
    """The names of the classes of a label; None if it has values.

    Raises:
        ScanError: it is a DICOM file, but neither SEG nor RTSTRUCT.
    """
    if path.is_dir():
        return tuple(masks_in(path)) or None
    if format_of(path) is not DICOM or not path.is_file():
        return None
    header = read_structures_header(path)
    if header is None:
        raise ScanError(f"decode: {path} is a DICOM file, but neither SEG nor RTSTRUCT; name files of segmentations")
    return header.names


def label_values_in(path: Path, *, note: Note | None = None) -> tuple[int, ...]:
    """The distinct values of a label file, ascending.

    Args:
        path: of the file.
        note: called if values were rounded to whole numbers; by default a warning says so once for each data set.

    Raises:
        ScanError: as `read_scan`; or a value is not a whole number, or the file has names in place of values.
    """
    note = note or notes_about([path])
    path = stage(path)
    if (names := label_names_in(path)) is not None:
        raise ScanError(f"decode: {path}: {needed_names(names)}")
    labels, _ = read_labels(path, where=f"decode: {path}", note=note)
    values: set[int] = set()
    for (slab,) in slabs(labels, max_values=_SLAB_VALUES):
        # Counting is six times faster than sorting for the few values that a label file has.
        low = int(slab.min())
        if int(slab.max()) - low < 65_536:
            signed_safe = slab if slab.dtype.kind == "u" else slab.astype(np.int64)
            counts = np.bincount((signed_safe - low).ravel(order="K").astype(np.intp, copy=False))
            values.update((np.flatnonzero(counts) + low).tolist())
        else:
            values.update(np.unique(slab).tolist())
    return tuple(sorted(values))


def read_named(path: Path, place: tuple[Path, Grid], values: NamedValues, *, series_uid: str = "", note: Note) -> Array:
    """The values (x, y, z) uint16 of a label that has names; where classes overlap, as `LabelCanvas` has it.

    Args:
        path: of the label.
        place: the scan and its grid.
        values: of the classes, by name.
        series_uid: of the scan, if it is a DICOM series.
        note: called with what was changed, once if classes overlap.

    Raises:
        ScanError: the label has none of the classes, is damaged, or lies elsewhere.
    """
    return paint_named(path, place, values, series_uid=series_uid, note=note).noted_label(path, note)


def paint_named(
    path: Path, place: tuple[Path, Grid], values: NamedValues, *, series_uid: str = "", note: Note
) -> LabelCanvas:
    """All classes of each voxel; arguments and errors as of `read_named`."""
    if path.is_dir():
        return paint_masks(path, place, values, note=note)
    return paint_structures(path, place[1], values, series_uid=series_uid, note=note)
