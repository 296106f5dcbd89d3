"""Labels as a folder of masks: one file a class, named after it, as TotalSegmentator writes and publishes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from voxelocity.core.scan_formats import SCAN_ENDINGS, stem_of
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.canvas import LabelCanvas, NamedValues
from voxelocity.data.decode.dicom.structures import needed_names
from voxelocity.data.decode.formats import read_header
from voxelocity.data.decode.grids import turned_onto
from voxelocity.data.decode.labels import read_labels
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError

# What the name of a file may not hold on some system, and a beginning that hides it.
_UNUSABLE = re.compile(r'[\x00-\x1f/\\:*?"<>|]|^\.')
_LONGEST_STEM = 120


def mask_stem(name: str) -> str:
    """What the file of a class is called, without ending: its name without what some system may not have in it."""
    return _UNUSABLE.sub("_", name.strip())[:_LONGEST_STEM].strip() or "unnamed"


def masks_in(folder: Path) -> dict[str, Path]:
    """The files of a folder by the names of their classes, sorted; empty where it is none of masks.

    Raises:
        ScanError: two files are of one class.
    """
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return {}
    found: dict[str, Path] = {}
    by_class: dict[str, str] = {}
    for name in names:
        if name.lower().endswith(SCAN_ENDINGS):
            if (other := by_class.setdefault(stem_of(name).casefold(), name)) != name:
                raise ScanError(f"decode: {folder} has two masks of one class, {other} and {name}; keep one")
            found[stem_of(name)] = folder / name
    return found


def paint_masks(folder: Path, place: tuple[Path, Grid], values: NamedValues, *, note: Note) -> LabelCanvas:
    """The classes of each voxel of a scan.

    Names are compared without regard to capitalization, as they are or as `mask_stem` writes them. Files of other names
    are left out, and a class without a file is not in the case.

    Args:
        folder: of the masks.
        place: the scan and its grid, on which they lie, in any order of axes.
        values: of the classes, by name.
        note: called if masks were turned.

    Raises:
        ScanError: no file has the name of a class, a file cannot be read, lies elsewhere, or has several values.
    """
    found = masks_in(folder)
    files = {name.casefold(): path for name, path in found.items()}
    keys = {name: (mask_stem(name).casefold(), name.casefold()) for name in values}
    wanted = {name: files[key] for name, several in keys.items() for key in several if key in files}
    if not wanted:
        raise ScanError(f"decode: {folder}: {needed_names(tuple(found), tuple(values))}")
    return merge_masks(place, wanted.items(), values, note=note)


def merge_masks(
    place: tuple[Path, Grid], masks: Iterable[tuple[str, Path]], values: NamedValues, *, note: Note
) -> LabelCanvas:
    """The classes of each voxel of a scan.

    Args:
        place: the scan and its grid.
        masks: classes, with a file of each; several of one class are put together.
        values: of the classes, by name.
        note: called if one is turned.

    Raises:
        ScanError: as `paint_masks`.
    """
    canvas = LabelCanvas(place[1].shape, values)
    for name, path in masks:
        canvas.paint(name, read_mask(path, place, note))
    return canvas


def read_mask(path: Path, place: tuple[Path, Grid], note: Note) -> Array:
    """Where a mask is (x, y, z) bool, on the grid of a scan.

    Raises:
        ScanError: as `paint_masks`.
    """
    voxels, grid = read_labels(stage(path), where=f"decode: {path}", note=note)
    voxels = turned_onto(voxels, place, (path, grid), where="decode: image and mask", note=note)
    inside: Array = voxels != 0
    found = voxels[inside]
    if len(found) and found.min() != found.max():
        some = [str(value) for value in np.unique(found)[:3]]
        raise ScanError(
            f"decode: {path} holds the values {', '.join(some)} besides 0, and a mask has only one; if the file is "
            "the label of all classes, name it in a table instead of its folder, or move it away"
        )
    return inside


def grid_of_masks(folder: Path) -> Grid:
    """The grid of the first mask.

    Raises:
        ScanError: it cannot be read.
    """
    return read_header(next(iter(masks_in(folder).values()))).grid
