"""Prediction and truth of one case, as indices on one grid: labels with values, or with names, which may overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import numpy as np

from voxelocity.core.cases import LabelValues, stored_values
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode import label_values_in, read_header
from voxelocity.data.decode.canvas import LabelCanvas, NamedValues, members_of
from voxelocity.data.decode.grids import turned_onto
from voxelocity.data.decode.labels import class_indices, read_labels
from voxelocity.data.decode.mask_folder import grid_of_masks
from voxelocity.data.decode.named_labels import label_names_in, paint_named
from voxelocity.data.decode.notes import Note
from voxelocity.infer.evaluation.pairs import Declared
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import listed

_MOST_LISTED = 12


class CasePair(NamedTuple):
    """Indices (x, y, z) on `grid`, as `case_score` takes them.

    Attributes:
        class_names: of the indices, the background first; that of ignored voxels follows them.
        regions: the indices that each class covers, by name; empty if each has one.
    """

    prediction: Array
    truth: Array
    grid: Grid
    class_names: tuple[str, ...]
    regions: Mapping[str, tuple[int, ...]]


def read_pair(path: Path, truth_path: Path, declared: Declared, *, scan: Path | None, note: Note) -> CasePair:
    """The voxels of a prediction and its truth, on the grid of the truth.

    A prediction that holds the same places in another order of axes is turned. Structures that overlap are compared
    whole, unless classes exclude each other and the other file has one value a voxel.

    Args:
        path: of the prediction.
        truth_path: of the truth.
        declared: what values and names mean; if nothing, each value, or each name, that is found is a class.
        scan: of the case, on whose grid structures are drawn if neither file has a grid; None if it is not known.
        note: called if a file was turned, its values were rounded, or its structures overlap.

    Raises:
        ScanError: a file cannot be read, does not fit to the other, or has values or names that are not declared.
    """
    # The kind of a DICOM file shows only in its content, which a server may still have.
    truth_path = stage(truth_path)
    files = (path, truth_path)
    named = {file: names for file in files if (names := label_names_in(file)) is not None}
    if not declared.labels:
        declared = replace(declared, labels=_find_labels(files, named, note))
    values = stored_values(declared.labels, declared.merged, None)
    of_truth = stored_values(declared.labels, declared.merged, declared.ignore_value)
    found = {
        file: _read_values(file, of_truth if file == truth_path else values, note)
        for file in files
        if file not in named
    }
    if not named:
        (voxels, of_prediction), (_, of_truth_file) = found[path], found[truth_path]
        where = f"evaluate: the truth and the prediction ({path.name})"
        on_truth = turned_onto(voxels, (truth_path, of_truth_file), (path, of_prediction), where=where, note=note)
        found[path] = on_truth, of_truth_file
    grid = found[next(iter(found))][1] if found else _grid_of(scan, path, truth_path)
    painted = {file: _paint(file, names, (scan or path, grid), declared, note) for file, names in named.items()}
    if painted and (declared.regions or (len(painted) == 2 and _note_overlaps(painted, note))):
        return _pair_of_sets([painted[file] if file in painted else found[file][0] for file in files], grid, declared)
    for file, canvas in painted.items():
        found[file] = class_indices(canvas.noted_label(file, note), values, where=f"evaluate: {file}"), grid
    index_of = {value: index for index, value in enumerate(sorted(declared.labels))}
    return CasePair(
        prediction=found[path][0],
        truth=found[truth_path][0],
        grid=found[truth_path][1],
        class_names=tuple(declared.labels[value] for value in index_of),
        regions={name: tuple(index_of[value] for value in parts) for name, parts in declared.regions.items()},
    )


def _paint(file: Path, names: Sequence[str], place: tuple[Path, Grid], declared: Declared, note: Note) -> LabelCanvas:
    wanted = _values_by_name(declared, names)
    _check_names(file, names, tuple(wanted))
    return paint_named(file, place, wanted, note=note)


def _note_overlaps(painted: Mapping[Path, LabelCanvas], note: Note) -> bool:
    """Whether classes of a file overlap."""
    overlaps = {file: where for file, canvas in painted.items() if (where := canvas.overlap()[0])}
    for file, where in overlaps.items():
        note("overlap", f"evaluate: {file}: structures overlap: {where}; each of them is compared separately")
    return bool(overlaps)


def _pair_of_sets(sides: Sequence[LabelCanvas | Array], grid: Grid, declared: Declared) -> CasePair:
    """Of prediction and truth: an index for each set of classes that a voxel is in, and which of them hold a class.

    Args:
        sides: painted structures, or class indices (x, y, z).
        grid: of both.
        declared: what names and values mean.
    """
    scored = [*(declared.regions or [declared.labels[value] for value in sorted(declared.labels)[1:]])]
    bits = {name: 1 << place for place, name in enumerate(scored)}
    by_value = {
        value: sum(bits[name] for name, values in declared.regions.items() if value in values) or bits.get(own, 0)
        for value, own in declared.labels.items()
    }
    known = {0: 0}
    tables: list[list[int]] = []
    for side in sides:
        sets = [by_value[value] for value in sorted(declared.labels)]
        if isinstance(side, LabelCanvas):
            of_names = [by_value[v] if isinstance(v, int) else bits[name] for name, v in side.values.items()]
            sets = [reduce(or_, members_of(names, of_names), 0) for names in side.sets]
        tables.append([known.setdefault(classes, len(known)) for classes in sets])
    # The index after those of the classes is that of ignored voxels, if there are any.
    dtype = np.min_scalar_type(len(known))
    prediction, truth = (
        np.array([*table, len(known)], dtype)[side.voxels if isinstance(side, LabelCanvas) else side]
        for table, side in zip(tables, sides, strict=True)
    )
    return CasePair(
        prediction=prediction,
        truth=truth,
        grid=grid,
        class_names=tuple(f"set {number}" for number in known.values()),
        regions={
            name: tuple(number for classes, number in known.items() if classes & bit) for name, bit in bits.items()
        },
    )


def _values_by_name(declared: Declared, found: Sequence[str]) -> NamedValues:
    """Values of the classes that are wanted of a file, by name, but for the background's own.

    They are the regions, if there are any, unless one of the names `found` in the file is of what these were drawn
    with.
    """
    background = declared.labels[min(declared.labels)]
    members = {name: value for value, group in declared.merged.items() for name in group.values()}
    own = {name: value for value, name in declared.labels.items()}
    drawn = {name.casefold() for name in own} - {name.casefold() for name in (background, *declared.regions)}
    if declared.regions and drawn.isdisjoint(name.strip().casefold() for name in found):
        return declared.regions
    return {name: value for name, value in {**members, **own}.items() if name != background}


def _read_values(path: Path, values: LabelValues, note: Note) -> tuple[Array, Grid]:
    """Class indices (x, y, z) and their grid."""
    voxels, grid = read_labels(path, where=f"evaluate: {path}", note=note)
    return class_indices(voxels, values, where=f"evaluate: {path}"), grid


def _find_labels(files: Sequence[Path], named: Mapping[Path, tuple[str, ...]], note: Note) -> dict[int, str]:
    """The values, or the names, of these files, each as a class of its own; 0 is the background."""
    if not named:
        values = {value for path in files for value in label_values_in(path, note=note)} - {0}
        return {0: "background", **{value: f"class {value}" for value in sorted(values)}}
    for path in files:
        if path not in named:
            file, names = next(iter(named.items()))
            raise ScanError(
                f"evaluate: {file} has structures with names ({listed(names, _MOST_LISTED)}), and {path} has values; "
                f'say with --labels which is which, in a JSON file such as {{"0": "background", "1": "{names[0]}"}}'
            )
    folded: dict[str, str] = {}
    for names in named.values():
        for name in names:
            folded.setdefault(name.strip().casefold(), name.strip())
    return {0: "background", **dict(enumerate((folded[key] for key in sorted(folded)), start=1))}


def _check_names(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    if not {name.strip().casefold() for name in names} & {name.strip().casefold() for name in wanted}:
        raise ScanError(
            f"evaluate: {path}: none of the classes {listed(wanted, _MOST_LISTED)} is among its structures "
            f"({listed(names, _MOST_LISTED)}); name the classes with --labels as the structures are named"
        )


def _grid_of(scan: Path | None, path: Path, truth_path: Path) -> Grid:
    if folder := next((file for file in (truth_path, path) if file.is_dir()), None):
        return grid_of_masks(folder)
    if scan is None:
        raise ScanError(
            f"evaluate: {path} and {truth_path} hold structures without the grid of their scan; as the truth, name a "
            "data set that lists the scan with them (`voxelocity init` makes its table)"
        )
    return read_header(scan).grid
