"""Labels as a folder of masks: one file a class, named after it, as TotalSegmentator writes and publishes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from voxelocity.core.scan_formats import SCAN_ENDINGS, stem_of
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode.canvas import LabelCanvas, NamedValues
from voxelocity.data.decode.dicom.structures import needed_names
from voxelocity.data.decode.formats import read_header, read_scan
from voxelocity.data.decode.grids import turned_onto
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError


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

    Names are compared without regard to capitalization. Files of other names are left out, and a class without a file
    is not in the case.

    Args:
        folder: of the masks.
        place: the scan and its grid, on which they lie, in any order of axes.
        values: of the classes, by name.
        note: called if masks were turned.

    Raises:
        ScanError: no file has the name of a class, a file cannot be read, lies elsewhere, or has several values.
    """
    files = {name.casefold(): path for name, path in masks_in(folder).items()}
    wanted = {name: files[name.casefold()] for name in values if name.casefold() in files}
    if not wanted:
        names = tuple(masks_in(folder))
        raise ScanError(f"decode: {folder}: {needed_names(names, tuple(name for name in values))}")
    return merge_masks(place, wanted, values, note=note)


def merge_masks(place: tuple[Path, Grid], masks: Mapping[str, Path], values: NamedValues, *, note: Note) -> LabelCanvas:
    """The classes of each voxel of a scan.

    Args:
        place: the scan and its grid.
        masks: files by class.
        values: of the classes, by name.
        note: called if one is turned.

    Raises:
        ScanError: as `paint_masks`.
    """
    canvas = LabelCanvas(place[1].shape, values)
    for name, path in masks.items():
        canvas.paint(name, read_mask(path, place, note))
    return canvas


def merge_raters(place: tuple[Path, Grid], files: Sequence[Path], *, note: Note) -> Array:
    """What most raters say (x, y, z) int64; the smallest value where several are equally frequent.

    Args:
        place: a scan and its grid.
        files: a label each.
        note: called if one is turned.

    Raises:
        ScanError: a file cannot be read, or lies elsewhere.
    """
    labels = [_read_one(path, place, note) for path in files]
    values = np.unique(np.concatenate([np.unique(label) for label in labels]))
    most, merged = np.zeros(place[1].shape, dtype=np.int16), np.zeros(place[1].shape, dtype=np.int64)
    for value in values:
        votes = sum((label == value for label in labels), start=np.zeros(most.shape, dtype=np.int16))
        wins = votes > most
        merged[wins], most[wins] = int(value), votes[wins]
    return merged


def read_mask(path: Path, place: tuple[Path, Grid], note: Note) -> Array:
    """Where a mask is (x, y, z) bool, on the grid of a scan.

    Raises:
        ScanError: as `paint_masks`.
    """
    voxels = _read_one(path, place, note)
    inside: Array = voxels != 0
    found = voxels[inside]
    if len(found) and found.min() != found.max():
        some = [f"{value:g}" for value in np.unique(found)[:3]]
        raise ScanError(
            f"decode: {path} holds the values {', '.join(some)} besides 0, and a mask has one; if it is the label of "
            "all classes, name it in a table in place of its folder, or move it away"
        )
    return inside


def _read_one(path: Path, place: tuple[Path, Grid], note: Note) -> Array:
    staged = stage(path)
    voxels, grid = read_scan(staged)
    turned = turned_onto(voxels, place, (path, grid), where="decode: image and mask", note=note)
    if len(turned) != 1:
        raise ScanError(f"decode: {path}: the mask has {len(turned)} channels; save it as one 3-D image")
    one: Array = turned[0]
    return one


def grid_of_masks(folder: Path) -> Grid:
    """The grid of the first mask.

    Raises:
        ScanError: it cannot be read.
    """
    return read_header(next(iter(masks_in(folder).values()))).grid
