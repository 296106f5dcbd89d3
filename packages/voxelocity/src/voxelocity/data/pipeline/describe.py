"""A folder that no list describes, looked into: its cases, channels and classes, and the table that describes them.

Names decide which files belong together (`source.folder`), except for DICOM, whose files say so themselves.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxelocity.core.scan_formats import SCAN_ENDINGS, without_companions
from voxelocity.data.decode import (
    StructuresHeader,
    is_dicom,
    read_header,
    read_structures_header,
    series_in,
    series_text,
)
from voxelocity.data.decode.dicom.files import Slice
from voxelocity.data.pipeline.class_names import find_class_names, is_background, lacking_text
from voxelocity.data.pipeline.infer_labels import check_are_labels, classes_in
from voxelocity.data.pipeline.masks import MAJORITY, MERGED_FOLDER, NO_HINTS, FolderHints, choose_labels, write_merged
from voxelocity.data.pipeline.modality import sort_by_kind
from voxelocity.data.source import DESCRIPTION_NAME, TABLE_NAME, FoundCase, FoundCases, files_below, group_files
from voxelocity.data.source.folder import how_to_list
from voxelocity.data.source.listing import conversion_of
from voxelocity.data.source.naming import ONLY_CHANNEL
from voxelocity.data.source.patterns import group_by_patterns
from voxelocity.data.source.sniff import lists_cases
from voxelocity_observe.core.errors import DatasetError, ScanError
from voxelocity_observe.core.plain import table_cell
from voxelocity_observe.core.whole_file import write_whole

_MOST_FILES = 5_000_000
_UNNAMED = "The classes are named after their values; give them their names."
_OVERLAPPING = (
    "Segments overlap in some files, and one class counts in each voxel; to learn overlapping classes, give each "
    'several values in dataset.json, such as {"a": [1, 3], "b": [2, 3]} with "regions_class_order": [1, 2].'
)


@dataclass(frozen=True, kw_only=True)
class FolderDescription:
    """What was understood of a folder.

    Attributes:
        channels: names of the channels of a `dataset.json`, in the order of the images of a case.
        labels: class names by file value.
        left_out: paths, cases or structures, and why each is not in the table.
        guesses: what was guessed and should be checked, as sentences.
        merged: label files by case id, each with its class, of cases whose label is to be merged from them.
        by_raters: whether these are labels of several raters, or masks of one class each.
    """

    folder: Path
    channels: tuple[str, ...]
    labels: Mapping[int, str]
    cases: tuple[FoundCase, ...]
    left_out: tuple[tuple[str, str], ...]
    guesses: tuple[str, ...]
    merged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    by_raters: bool = False


def describe_folder(folder: Path, *, num_threads: int, hints: FolderHints = NO_HINTS) -> FolderDescription:
    """Looks into a folder: names up to eight folders deep, headers of DICOM files, and the values of all label files.

    Args:
        folder: that no list describes.
        num_threads: files that are read at a time.
        hints: what the user says of it.

    Raises:
        DatasetError: the folder does not exist, is described already, or holds no scans or no labels.
        ScanError: a label file or a DICOM file cannot be read.
    """
    if not folder.is_dir():
        raise DatasetError(f"source: {folder} is not a folder; name the folder that holds the scans")
    if lists_cases(folder / DESCRIPTION_NAME):
        raise DatasetError(
            f"source: {folder / DESCRIPTION_NAME} lists the cases of this data set already; open it with `voxelocity "
            f"plan {folder}`"
        )
    if _as_utf8(path := str(folder.resolve())) != path:
        raise DatasetError(f"source: {_as_utf8(path)} is not UTF-8, as the paths in a table must be; rename the folder")
    everything = without_companions(files_below(folder, most=_MOST_FILES))
    names = [name for name in everything if not _why_unlisted(name) and not name.startswith(f"{MERGED_FOLDER}/")]
    unnamed = [(_as_utf8(name), why) for name in everything if (why := _why_unlisted(name))]
    series, structures, left_out = _dicom_in(folder, names)
    scans = [name for name in names if name.lower().endswith(SCAN_ENDINGS)]
    linked = None if hints != NO_HINTS else _linked(series, structures, folder.resolve().name)
    if linked:
        found = replace(
            linked, left_out=(*linked.left_out, *((name, "the DICOM series are used instead") for name in scans))
        )
    elif hints.image or hints.label:
        found = group_by_patterns([*scans, *series], image=hints.image, label=hints.label)
    else:
        found = group_files([*scans, *series], are_masks=hints.are_masks)
    chosen = choose_labels(folder, found, hints)
    found, merged = chosen.found, chosen.merged
    labeled = [case for case in found.cases if case.label]
    if len(labeled) <= len(found.masks):
        raise _without_labels(folder, found, unnamed, scans=scans, series=list(series))
    found = _without_odd_ones(folder, found)
    channels, guessed, found = _channels(folder, found, series, num_threads)
    labeled = [case for case in found.cases if case.label]
    by_raters = [folder / path for paths in merged.values() for path in paths] if not chosen.classes else []
    labels, guesses, unused = (
        (chosen.classes, chosen.guesses, [])
        if chosen.classes
        else _labels(folder, labeled, structures, num_threads, names=names, files=by_raters)
    )
    return FolderDescription(
        folder=folder,
        channels=channels,
        labels=labels,
        cases=found.cases,
        left_out=(*unnamed, *left_out, *found.left_out, *unused),
        guesses=(*guessed, *guesses),
        merged={case.case_id: merged[case.case_id] for case in labeled if case.case_id in merged},
        by_raters=hints.raters == MAJORITY,
    )


def _without_labels(
    folder: Path, found: FoundCases, unnamed: Sequence[tuple[str, str]], *, scans: Sequence[str], series: Sequence[str]
) -> DatasetError:
    """The error that says what the folder holds in place of cases with one label each, and what to do."""
    num_labeled = sum(bool(case.label) for case in found.cases)
    some = f"{num_labeled} cases with one label, {len(found.masks)} with several"
    belonging = some if num_labeled else "no label that belongs to any of them"
    listed = f"{len(scans)} scan files, {len(series)} DICOM series, and {belonging}"
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in (*unnamed, *found.left_out)[:5])
    images = [*scans, *series]
    cure = f"These are scans {how_to_list(folder, found, images)}" if images else conversion_of(folder)
    return DatasetError(f"source: {folder} holds {listed}{reasons}\n{cure}")


def write_description(
    found: FolderDescription, out: Path, *, overwrite: bool, num_threads: int = 1
) -> tuple[Path, Path, dict[str, int]]:
    """Writes the table of cases and a `dataset.json` with the names of channels and classes, and merges masks.

    Paths in the table are relative to it where its folder holds them, else absolute.

    Returns:
        The two paths, and by case id, how many voxels lie in several masks.

    Raises:
        DatasetError: one of the files exists, and `overwrite` is False or it lists the cases of a data set.
        OutputError: a file cannot be written.
        ScanError: a mask cannot be read.
    """
    table, description = out / TABLE_NAME, out / DESCRIPTION_NAME
    plan = shlex.join(["voxelocity", "plan", str(out)])
    merged = [out / MERGED_FOLDER / f"{case_id}.nii.gz" for case_id in found.merged]
    existing = [path for path in (table, description, *merged) if os.path.lexists(path)]
    if existing and not overwrite:
        raise DatasetError(
            f"source: {existing[0]} exists; open it with `{plan}`, replace it with --overwrite, or "
            "write to another folder with -o"
        )
    if lists_cases(description):
        raise DatasetError(
            f"source: {description} lists the cases of a data set and is never replaced; open it with `{plan}`, or "
            "write to another folder with -o"
        )
    columns = ["image"] if len(found.channels) == 1 else [f"image_{index}" for index in range(len(found.channels))]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    shares_patients = any(case.patient not in ("", case.case_id) for case in found.cases)
    rows.writerow(["case", *columns, "label", *(["patient"] if shares_patients else [])])
    is_inside = out.resolve() == found.folder.resolve()
    for case in found.cases:
        listed = [
            path
            if is_inside or not path or path.startswith(f"{MERGED_FOLDER}/")
            else str((found.folder / path).absolute())
            for path in (*case.images.values(), case.label)
        ]
        rows.writerow(map(table_cell, (case.case_id, *listed, *([case.patient] if shares_patients else []))))
    named = {
        "name": found.folder.resolve().name,
        "channel_names": {str(index): name for index, name in enumerate(found.channels)},
        "labels": {name: value for value, name in found.labels.items()},
    }
    overlaps: dict[str, int] = {}
    if found.merged:
        labels: Mapping[int, str] = {} if found.by_raters else found.labels
        overlaps = write_merged(found.folder, found.merged, labels, out / MERGED_FOLDER, num_threads=num_threads)
    write_whole(table, text.getvalue().encode())
    write_whole(description, (json.dumps(named, indent=1, ensure_ascii=False) + "\n").encode())
    return table, description, overlaps


def _why_unlisted(name: str) -> str:
    """Why a table cannot list a file of this name; "" if it can."""
    if _as_utf8(name) != name:
        return "its name is not UTF-8"
    return "its name holds a line break or another control character" if re.search(r"[\x00-\x1f\x7f]", name) else ""


def _as_utf8(path: str) -> str:
    """The path itself, or a form that can be printed if bytes of it are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _dicom_in(
    folder: Path, names: Sequence[str]
) -> tuple[dict[str, Slice], dict[str, StructuresHeader], list[tuple[str, str]]]:
    """A slice of each series, and files of structures, by path, a folder where it holds one series alone; the rest."""
    others = [name for name in names if not name.lower().endswith((*SCAN_ENDINGS, ".csv", ".tsv", ".json", ".txt"))]
    series: dict[str, Slice] = {}
    structures: dict[str, StructuresHeader] = {}
    left_out: list[tuple[str, str]] = []
    for place, inside in itertools.groupby(sorted(others, key=os.path.dirname), key=os.path.dirname):
        files = [name for name in inside if (folder / name).is_file() and is_dicom(folder / name)]
        if not files:
            continue
        found = series_in(folder / place)
        for slices in found.values():
            path = place or "." if len(found) == 1 else slices[0].path.relative_to(folder).as_posix()
            if len(slices) == 1 and len(found) > 1:
                left_out.append((path, f"one slice only ({series_text(slices)})"))
            else:
                series[path] = slices[0]
        images = {image.path.name for slices in found.values() for image in slices}
        for name in files:
            header = None if os.path.basename(name) in images else read_structures_header(folder / name)
            if header is not None:
                structures[name] = header
    return series, structures, left_out


def _linked(
    series: Mapping[str, Slice], structures: Mapping[str, StructuresHeader], root_name: str
) -> FoundCases | None:
    """The series that a file of structures refers to, of the modality that most of them have."""
    labels = {
        path: [name for name, header in structures.items() if image.series_uid in header.series_uids]
        for path, image in series.items()
    }
    counts = Counter(series[path].modality for path, found in labels.items() if found)
    if not counts:
        return None
    modality = max(sorted(counts), key=lambda name: counts[name])
    parts = {path: [root_name] if path == "." else path.split("/") for path in series}
    used = [path for path, found in labels.items() if found and series[path].modality == modality]
    shared = set.intersection(*(set(parts[path]) for path in used)) if len(used) > 1 else set()
    cases, left_out = [], []
    patients: dict[str, str] = {}
    for path, found in labels.items():
        if series[path].modality != modality:
            left_out.append((path, f"{series[path].modality}; the table has {modality}"))
        elif not found:
            left_out.append((path, "no DICOM SEG or RTSTRUCT refers to it"))
        else:
            case = "_".join(part for part in parts[path] if part not in shared) or parts[path][-1]
            case = case.removesuffix(".dcm")
            # The patient's own id stays in the DICOM files.
            patient = patients.setdefault(series[path].patient_id or path, case)
            cases.append(FoundCase(case_id=case, images={ONLY_CHANNEL: path}, label=found[0], patient=patient))
            left_out += [(name, f"{found[0]} refers to the same series") for name in found[1:]]
    used_labels = {name for found in labels.values() for name in found}
    left_out += [(name, "the series that it refers to is missing") for name in structures if name not in used_labels]
    return FoundCases(channels=(ONLY_CHANNEL,), cases=tuple(cases), left_out=tuple(left_out))


def _labels(
    folder: Path,
    labeled: Sequence[FoundCase],
    structures: Mapping[str, StructuresHeader],
    num_threads: int,
    *,
    names: Sequence[str],
    files: Sequence[Path] = (),
) -> tuple[dict[int, str], list[str], list[tuple[str, str]]]:
    """Class names by value, what was guessed about them, and the structures that are not classes.

    `names` are those of all files; `files` are what the values are read from, if not the labels of the cases.
    """
    named = {case.case_id: structures[case.label] for case in labeled if case.label in structures}
    if named:
        # As they are read: names that differ in capitalization alone are one.
        spellings: dict[str, str] = {}
        found = {
            case_id: dict.fromkeys(
                spellings.setdefault(name.strip().casefold(), name) for name in header.names if not is_background(name)
            )
            for case_id, header in named.items()
        }
        counts = Counter(name for names_of_file in found.values() for name in names_of_file)
        # Where every file has its own names, the user has to choose among all of them.
        common = [name for name, count in counts.items() if 2 * count >= len(named)] or list(counts)
        rare = [
            (name, f"a structure of {count} of {len(named)} cases")
            for name, count in counts.items()
            if name not in common
        ]
        may_overlap = len(common) > 1 and any(header.may_overlap for header in named.values())
        guesses = [text for text in (_OVERLAPPING * may_overlap, lacking_text(found)) if text]
        return {0: "background", **dict(enumerate(common, start=1))}, guesses, rare
    files = files or [folder / case.label for case in labeled]
    classes = classes_in(files, root=folder, num_threads=num_threads)
    known, where = find_class_names(folder, names, files, [value for value in classes if value])
    check_are_labels(classes, files, root=folder, are_named=bool(known))
    guesses = [f"The classes have the names of {where}."] if known else [_UNNAMED, *([where] if where else [])]
    return {**classes, **known}, guesses, []


def _without_odd_ones(folder: Path, found: FoundCases) -> FoundCases:
    """Without cases that have no label and another number of channels than those with one, such as films of a heart."""
    labeled = next(case for case in found.cases if case.label)
    expected = _num_channels(folder, labeled)
    odd = {
        case.case_id: number
        for case in found.cases
        if not case.label and (number := _num_channels(folder, case)) not in (0, expected)
    }
    reasons = [(name, f"no label, and {number} channels; others have {expected}") for name, number in odd.items()]
    cases = tuple(case for case in found.cases if case.case_id not in odd)
    return replace(found, cases=cases, left_out=(*found.left_out, *reasons))


def _num_channels(folder: Path, case: FoundCase) -> int:
    """Of all its files; 0 if one cannot be read, which opening the table reports."""
    try:
        return sum(read_header(folder / image).num_channels for image in case.images.values())
    except ScanError:
        return 0


def _channels(
    folder: Path, found: FoundCases, series: Mapping[str, Slice], num_threads: int
) -> tuple[tuple[str, ...], list[str], FoundCases]:
    """Names of the channels, what was guessed about them, and the cases that are of one kind."""
    if len(found.channels) > 1:
        names = tuple(f"channel_{int(name)}" if name.isdecimal() else name for name in found.channels)
        return names, ["The channels are named after their files; name a CT channel CT."], found
    name, reasons, guesses = sort_by_kind(
        folder, found.cases, series, channel=found.channels[0], num_threads=num_threads
    )
    cases = tuple(case for case in found.cases if case.case_id not in reasons)
    return (name,), guesses, replace(found, cases=cases, left_out=(*found.left_out, *reasons.items()))
