"""Which prediction belongs to which truth, and what the values in them are called. Reads names and JSON, no voxels."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxelocity.core.cases import MergedClasses
from voxelocity.core.class_merging import MERGED, merge_labels
from voxelocity.core.records import PREDICTIONS_TABLE, WITH_PREDICTIONS
from voxelocity.core.scan_formats import FILE_ENDINGS, format_names, stem_of, without_companions
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode.mask_folder import masks_in
from voxelocity.data.source import open_cases
from voxelocity.data.source.description import Description
from voxelocity_observe.core.errors import InputError, missing_path
from voxelocity_observe.core.plain import excerpt, shortened, text_of_cell
from voxelocity_observe.core.quantities import listed

_DESCRIPTIONS = ("model.json", "dataset.json")
EVALUATION_FILES = ("evaluation.html", "evaluation.json", "evaluation.csv")
"""What `write_evaluation` writes, possibly next to the predictions: the page, its figures, their table."""
_WITH_PREDICTIONS = (*WITH_PREDICTIONS, *EVALUATION_FILES)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What values of label files mean.

    Attributes:
        labels: file value to class name, background included; empty if nothing declares them.
        regions: of overlapping classes, the file values of each, by name.
        merged: of classes that stand for several values of the truth, by their value, these and their names.
        ignore_value: the file value of voxels that do not count; None without one.
        where: the file that says so; "" if none does.
    """

    labels: Mapping[int, str] = field(default_factory=dict)
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    merged: MergedClasses = field(default_factory=dict)
    ignore_value: int | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The true label files.

    Attributes:
        files: by case id.
        scans: the first file of each scan, by case id, if a data set lists them.
        declared: what their values mean.
    """

    files: Mapping[str, Path]
    scans: Mapping[str, Path]
    declared: Declared


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """What there is to compare, and what cannot be.

    Attributes:
        refs: cases in both, sorted by case id: `images` is the prediction, `label` the truth.
        missing: cases without a prediction.
        extra: predictions without a truth.
        others: entries of the folders of predictions that are not scans.
    """

    refs: tuple[VolumeRef, ...]
    missing: tuple[str, ...]
    extra: tuple[Path, ...]
    others: tuple[Path, ...]


def find_truth(path: Path, *, labels: Path | None) -> Truth:
    """The label files at `path`, and what their values mean.

    Args:
        path: a folder of label files, or a data set, as `voxelocity.open` takes it.
        labels: declares the values, as `read_labels` takes it. Without it, the data set does, or the `dataset.json`
            next to the folder of label files.

    Raises:
        InputError: there are no label files, or the values are declared in a way that cannot be used.
    """
    declared = Declared() if labels is None else read_labels(labels)
    if files := {} if _lists_cases(path) else _scans_in(path)[0]:
        near = [file for file in (path / "dataset.json", path.parent / "dataset.json") if file.is_file()]
        return Truth(files=files, scans={}, declared=read_labels(near[0]) if not declared.labels and near else declared)
    cases = open_cases(path)
    if not declared.labels and cases.labels:
        declared = Declared(
            labels=dict(cases.labels), regions=cases.regions, ignore_value=cases.ignore_value, where=str(path)
        )
    labeled = {ref.case_id: ref.label for ref in cases.refs if ref.label is not None}
    if not labeled:
        raise InputError(f"evaluate: no case of {path} has a label, so nothing can be compared; name the true labels")
    scans = {ref.case_id: ref.images[0] for ref in cases.refs}
    return Truth(files=labeled, scans=scans, declared=declared)


def read_labels(path: Path) -> Declared:
    """File value to class name, and the file that says so.

    Args:
        path: the folder of a run (`model.json`) or of a data set (`dataset.json`), or a JSON file that holds "labels"
            or is itself such a mapping, in the direction of MSD or of nnU-Net.

    Raises:
        InputError: there is no such file, or it does not declare classes.
    """
    found = next((path / name for name in _DESCRIPTIONS if (path / name).is_file()), path)
    if not found.is_file():
        raise InputError(
            f"evaluate: {path} declares no classes; name the folder of a finished run, a dataset.json, or a JSON file "
            'such as {"0": "background", "1": "liver"}'
        )
    description = Description.read(found)
    if "labels" not in description.values:
        description = Description(path=found, values={"labels": description.values})
    labels, regions, ignore_value = description.labels, description.regions, description.ignore_value
    if not regions and "region_order" in description.values:
        # Of a model, in class indices.
        values = sorted(labels)
        indices = dict(description.values.get("regions") or {})
        regions = {name: tuple(values[index] for index in members) for name, members in indices.items()}
        ignore_value = description.values.get("ignore_value")
    merged = _merged_of(description, labels)
    return Declared(labels=labels, regions=regions, merged=merged, ignore_value=ignore_value, where=str(found))


def _merged_of(description: Description, labels: Mapping[int, str]) -> MergedClasses:
    """What classes of a model stand for; empty for other descriptions."""
    stored = description.values.get("merged") if "window" in description.values else None
    try:
        found = {
            int(value): {int(member): str(name) for member, name in members.items()}
            for value, members in (stored or {}).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise description.error(f'"merged" is {shortened(stored)}; restore the file from its run') from None
    if unknown := sorted({*found} - {*labels}):
        raise description.error(f'"merged" has the values {unknown[:8]}, which "labels" does not have')
    return found


def find_pairs(folders: Sequence[Path], truth: Truth) -> Pairs:
    """The predictions of all folders with their truth, by name: CASE.nii.gz, CASE.dcm, a folder of masks, ...

    Raises:
        InputError: a folder does not exist or holds no scan, or a case occurs twice.
    """
    found: dict[str, Path] = {}
    twice: list[str] = []
    others: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            what = f"{folder} is not a folder" if folder.exists() else missing_path(folder)
            raise InputError(f"evaluate: {what}; name a folder of predictions")
        files, rest = _scans_in(folder, masks_of=truth.files)
        others.extend(rest)
        if not files:
            raise InputError(f"evaluate: the folder {folder} holds no {format_names()} file; name one that does")
        twice += [f"'{case}' ({found[case]} and {file})" for case, file in files.items() if case in found]
        found |= files
    if twice:
        raise InputError(
            f"evaluate: cases that are predicted in two folders would count twice: {listed(twice)}; folds hold each "
            "case out once: leave one of the folders out, or remove these files"
        )
    both = sorted(found.keys() & truth.files.keys())
    return Pairs(
        refs=tuple(VolumeRef(case_id=case, images=(found[case],), label=truth.files[case]) for case in both),
        missing=tuple(sorted(truth.files.keys() - found.keys())),
        extra=tuple(found[case] for case in sorted(found.keys() - truth.files.keys())),
        others=tuple(others),
    )


def read_predicted(folder: Path) -> dict[str, Mapping[str, str]]:
    """The rows of the table of predictions in a folder, by the name of the file that each is about.

    A table that is damaged, or of another program, says nothing.
    """
    try:
        with (folder / PREDICTIONS_TABLE).open(encoding="utf-8", newline="") as file:
            rows = [{key: text_of_cell(cell or "") for key, cell in row.items() if key} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error):
        return {}
    return {row["file"]: row for row in rows if row.get("file")}


def _lists_cases(path: Path) -> bool:
    """Whether `path` is a data set that says which of its files are labels. nnU-Net copies a `dataset.json` without
    such a list next to its predictions.
    """
    # The tables in a folder of predictions do not list cases of a data set.
    if not path.is_dir() or any(table.name not in _WITH_PREDICTIONS for table in path.glob("*.[ct]sv")):
        return True
    description = path / "dataset.json"
    return description.is_file() and not {"training", "dataset"}.isdisjoint(Description.read(description).values)


def _scans_in(folder: Path, *, masks_of: Container[str] = ()) -> tuple[dict[str, Path], list[Path]]:
    """The scans of a folder by case id, and its other entries. Hidden files and what we write there are neither.

    A folder of masks, one for each class, is one too if it is named as one of the cases `masks_of`.
    """
    scans: dict[str, Path] = {}
    others: list[Path] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"evaluate: {folder} cannot be read ({error.strerror}); check its permissions") from None
    for name in without_companions(names):
        if name.startswith(".") or name in _WITH_PREDICTIONS:
            continue
        path = folder / name
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise InputError(f"evaluate: {str(path)!r} is not UTF-8, so no page can show it; rename it") from None
        is_masks = name in masks_of and path.is_dir() and bool(masks_in(path))
        case = name if is_masks else stem_of(name)
        if not is_masks and (path.is_dir() or not name.lower().endswith(FILE_ENDINGS)):
            others.append(path)
        elif case in scans:
            raise InputError(f"evaluate: {scans[case]} and {path} are both case '{case}'; remove one of them")
        else:
            scans[case] = path
    return scans, others


def merge_as_predicted(declared: Declared, rows: Iterable[Mapping[str, str]]) -> tuple[Declared, str]:
    """The classes as the model learned them, where it merged some of those that are declared; and what to say of it.

    Args:
        declared: what values of label files mean.
        rows: of the tables next to the predictions.

    Raises:
        ConfigError: as `merge_labels`.
    """
    texts = {row[MERGED] for row in rows if row.get(MERGED)}
    groups = _groups_in(texts.pop()) if len(texts) == 1 and not declared.merged else {}
    if not groups:
        return declared, ""
    words = "; ".join(f"{excerpt(name)}: {listed([*map(str, values)])}" for name, values in groups.items())
    learned = f"The model merged label values into one class ({words})"
    if not declared.regions and all(value in declared.labels for values in groups.values() for value in values):
        labels, merged = merge_labels(declared.labels, groups, where=f"evaluate: {PREDICTIONS_TABLE}")
        return replace(declared, labels=labels, merged=merged), f"{learned}, so those of the truth are merged too."
    if {*groups} <= {*declared.labels.values()}:
        return declared, ""
    return declared, f"{learned}, but the truth does not; give the folder of its run to --labels."


def _groups_in(text: str) -> dict[str, list[int]]:
    """The groups of classes in a cell of the table; none in one that is damaged."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not all(isinstance(values, list) for values in found.values()):
        return {}
    return found if all(type(value) is int for values in found.values() for value in values) else {}
