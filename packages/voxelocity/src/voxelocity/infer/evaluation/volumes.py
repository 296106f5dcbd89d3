"""Prediction and truth of one case, as class indices on one grid: labels with values, or with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from voxelocity.core.cases import LabelValues, MergedClasses, stored_values
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode import label_values_in, read_header
from voxelocity.data.decode.grids import turned_onto
from voxelocity.data.decode.labels import class_indices, read_labels
from voxelocity.data.decode.mask_folder import grid_of_masks
from voxelocity.data.decode.named_labels import label_names_in, read_named
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import listed

_MOST_LISTED = 12


class CasePair(NamedTuple):
    """Class indices (x, y, z) on `grid`, and the names of the classes, the background first."""

    prediction: Array
    truth: Array
    grid: Grid
    class_names: tuple[str, ...]


def read_pair(
    path: Path,
    truth_path: Path,
    *,
    labels: Mapping[int, str],
    scan: Path | None,
    merged: MergedClasses,
    ignore_value: int | None = None,
    note: Note,
) -> CasePair:
    """The voxels of a prediction and its truth, on the grid of the truth.

    A prediction that holds the same places in another order of axes is turned.

    Args:
        path: of the prediction.
        truth_path: of the truth.
        labels: file value to class name, the background as the smallest value; empty if nothing declares them. Each
            value, or each name, that is found is a class then.
        scan: of the case, on whose grid structures are drawn if neither file has a grid; None if it is not known.
        merged: of classes that stand for several values, by their value, these and their names.
        ignore_value: that the truth may also have; its index follows those of the classes.
        note: called if a file was turned or its values were rounded.

    Raises:
        ScanError: a file cannot be read, does not fit to the other, or has values or names that are not declared.
    """
    # The kind of a DICOM file shows only in its content, which a server may still have.
    truth_path = stage(truth_path)
    files = (path, truth_path)
    named = {file: names for file in files if (names := label_names_in(file)) is not None}
    labels = labels or _find_labels(files, named, note)
    values = stored_values(labels, merged, None)
    of_truth = stored_values(labels, merged, ignore_value)
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
    wanted = _values_by_name(labels, merged)
    for file, names in named.items():
        _check_names(file, names, tuple(wanted))
        structures = read_named(file, (scan or path, grid), wanted, note=note)
        found[file] = class_indices(structures, values, where=f"evaluate: {file}"), grid
    prediction, truth = found[path], found[truth_path]
    return CasePair(prediction[0], truth[0], truth[1], tuple(labels[value] for value in sorted(labels)))


def _values_by_name(labels: Mapping[int, str], merged: MergedClasses) -> dict[str, int]:
    """Values of the classes, and of those that they stand for, by name, but for the background's own."""
    background = min(labels)
    own = {name: value for value, name in labels.items() if value != background}
    members = {name: value for group in merged.values() for value, name in group.items() if value != background}
    return {**members, **own}


def _read_values(path: Path, values: LabelValues, note: Note) -> tuple[Array, Grid]:
    """Class indices (x, y, z) and their grid."""
    voxels, grid = read_labels(path, where=f"evaluate: {path}", note=note)
    if len(voxels) != 1:
        raise ScanError(
            f"evaluate: {path}: it has {len(voxels)} channels, and labels have one; save it as one 3-D image with a "
            "number per class"
        )
    return class_indices(voxels[0], values, where=f"evaluate: {path}"), grid


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
