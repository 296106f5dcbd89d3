"""Several label files of a case: masks of one class each, in a folder of their own or merged, and labels of raters."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from voxelocity.core.cases import MAX_CLASSES
from voxelocity.core.scan_formats import stem_of
from voxelocity.core.staging import stage
from voxelocity.core.volume import Array, Grid
from voxelocity.data.decode import label_values_in, read_header, write_scan
from voxelocity.data.decode.grids import turned_onto
from voxelocity.data.decode.labels import read_labels
from voxelocity.data.decode.mask_folder import merge_masks, read_mask
from voxelocity.data.decode.notes import Note, notes_about
from voxelocity.data.pipeline.class_names import is_background, lacking_text
from voxelocity.data.source import FoundCases
from voxelocity_observe.core.errors import DatasetError, OutputError, ScanError

MERGED_FOLDER = "merged_labels"
"""Of the label files, next to the table."""
MAJORITY = "majority"
"""What --raters takes for what most label files of a case say."""
_RATER = re.compile(r"(?:^|[-_. ])(?:rater|reader|observer|annotator|expert|doctor|radiologist)s?[-_. ]?\w{0,2}$", re.I)
_AGREED = re.compile(r"consensus|majority|staple|manual", re.I)
_NUMBER = re.compile(r"[-_. ]?\d{1,2}$")
# Cases whose masks are read before anything is written.
_NUM_LOOKED_AT = 2


@dataclass(frozen=True, kw_only=True)
class FolderHints:
    """What the user says of a folder that no list describes.

    Attributes:
        are_masks: label files are masks of one class each.
        raters: "majority" of several label files of a case, or a part of the name of the one to take; "" if not said.
        image: pattern of the paths of images, as `group_by_patterns` takes it; "" if names decide.
        label: pattern of those of labels.
    """

    are_masks: bool = False
    raters: str = ""
    image: str = ""
    label: str = ""


NO_HINTS = FolderHints()


@dataclass(frozen=True, kw_only=True)
class ChosenLabels:
    """Cases with one label each, where there were several files for it.

    Attributes:
        found: the cases.
        merged: of those whose label is to be merged, the files by case id, each with its class.
        classes: names by value, if labels are masks of one class each.
        guesses: what was guessed, as sentences.
    """

    found: FoundCases
    merged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    classes: dict[int, str] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)


def choose_labels(folder: Path, found: FoundCases, hints: FolderHints) -> ChosenLabels:
    """The cases with one label each: a folder of masks, a rater's, or one to merge; unchanged where that is not clear.

    Args:
        folder: that paths start from.
        found: with label files of cases that have several.
        hints: what the user says of them.

    Raises:
        DatasetError: no or several label files of a case are by the rater, or there are too many masks.
        ScanError: a mask cannot be read, lies elsewhere than others of its case, or has several values.
    """
    masks = dict(found.masks)
    if not masks:
        return ChosenLabels(found=found)
    if hints.raters == MAJORITY:
        return ChosenLabels(found=_with_merged(found, masks.keys()), merged=masks)
    if hints.raters:
        by_rater = {case: _rated_by(hints.raters, case, list(paths)) for case, paths in masks.items()}
        return ChosenLabels(found=_with_labels(found, by_rater))
    # A case with one mask alone looks like one with a label of all classes.
    masks |= {case.case_id: {case.label: _stem(case.label)} for case in found.cases if case.label}
    folders = _folders_of_masks(masks, [path for case in found.cases for path in case.images.values()])
    is_sure = hints.are_masks or "{class}" in hints.label
    if not is_sure and not (folders and _are_masks_of_classes(folder, masks)):
        return ChosenLabels(found=found)
    classes, overlapping = classes_of_masks(folder, masks)
    found_names = {case: {name.casefold() for name in paths.values()} for case, paths in masks.items()}
    guesses = [text for text in (overlapping, lacking_text(found_names)) if text]
    are_named = folders and all(name == _stem(path) for paths in masks.values() for path, name in paths.items())
    if folders and not is_sure:
        case, inside = next(iter(folders.items()))
        how = (
            "read as one label, and the names of the files are those of the classes"
            if are_named
            else "merged into one label, and the classes have the names of the files without that of the case"
        )
        guesses.insert(
            0,
            f"Each case has a folder of masks of one class each, as {inside}/ has {len(masks[case])}; they are {how}.",
        )
    if are_named:
        return ChosenLabels(found=_with_labels(found, folders), classes=classes, guesses=guesses)
    return ChosenLabels(found=_with_merged(found, masks.keys()), merged=masks, classes=classes, guesses=guesses)


def _with_labels(found: FoundCases, labels: Mapping[str, str]) -> FoundCases:
    """With these labels, and without the reasons why cases had none."""
    cases = tuple(replace(case, label=labels.get(case.case_id, case.label)) for case in found.cases)
    left_out = tuple((name, why) for name, why in found.left_out if name not in labels)
    return replace(found, cases=cases, left_out=left_out, masks={})


def _with_merged(found: FoundCases, masks: Collection[str]) -> FoundCases:
    """With the files that their masks are merged into."""
    return _with_labels(found, {case_id: f"{MERGED_FOLDER}/{case_id}.nii.gz" for case_id in masks})


def _rated_by(name: str, case_id: str, paths: Sequence[str]) -> str:
    """The label file of a rater, by its own name, or by its folders if the names of the files do not tell."""
    by_name = [path for path in paths if name.casefold() in os.path.basename(path).casefold()]
    chosen = by_name if len(by_name) == 1 else [path for path in paths if name.casefold() in path.casefold()]
    if len(chosen) != 1:
        raise DatasetError(
            f"source: {len(chosen)} label files of case {case_id} have {name!r} in their names, of {', '.join(paths)}; "
            f"give --raters a part of one name, or {MAJORITY}"
        )
    return chosen[0]


def _are_by_raters(masks: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the label files of a case differ by a rater or a small number alone, or one is what raters agreed on."""
    names = {name for paths in masks.values() for name in paths.values()}
    are_rated = all(map(_RATER.search, names)) or any(map(_AGREED.search, names))
    return are_rated or len({_NUMBER.sub("", name) for name in names}) == 1


def _folders_of_masks(masks: Mapping[str, Mapping[str, str]], images: Sequence[str]) -> dict[str, str]:
    """The folder that holds the masks of a case and nothing else, by case; empty unless all cases have one.

    Args:
        masks: paths by case id.
        images: all others.
    """
    places = {case_id: {os.path.dirname(path) for path in paths} for case_id, paths in masks.items()}
    taken = {os.path.dirname(image) for image in images}
    found = {case_id: next(iter(inside)) for case_id, inside in places.items() if len(inside) == 1}
    are_apart = len(set(found.values())) == len(masks) and not taken & set(found.values()) and "" not in found.values()
    return found if are_apart else {}


def _are_masks_of_classes(folder: Path, masks: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether label files are masks of one class each, by their names and, of two cases, their values.

    Most of the names occur in at least half of the cases, and differ by more than a rater; a file has at most one value
    besides 0.
    """
    if _are_by_raters(masks):
        return False
    cases_with = Counter(name for paths in masks.values() for name in set(paths.values()))
    if 2 * sum(2 * number >= len(masks) for number in cases_with.values()) < len(cases_with):
        return False
    looked_at = [folder / path for paths in list(masks.values())[:_NUM_LOOKED_AT] for path in paths]
    try:
        return all(len({*label_values_in(path), 0}) <= 2 for path in looked_at)
    except ScanError:
        # What ails the file is reported when its case is read.
        return False


def classes_of_masks(folder: Path, masks: Mapping[str, Mapping[str, str]]) -> tuple[dict[int, str], str]:
    """Class names by value, after the background, of masks by case id; and where they overlap, as a sentence.

    A mask of the background is not a class. Names that differ in capitalization alone are one. They are sorted; but if
    masks of the first two cases overlap, the largest come first. As the last of several masks counts, a lesion inside
    an organ is then taken from the organ, not lost in it.

    Raises:
        DatasetError: there are too many classes.
        ScanError: a mask cannot be read, lies elsewhere than the others of its case, or has several values.
    """
    spellings: dict[str, str] = {}
    named = {
        case: [(name, path) for path, name in paths.items() if not is_background(name)] for case, paths in masks.items()
    }
    for name in sorted(name for pairs in named.values() for name, _ in pairs):
        spellings.setdefault(name.casefold(), name)
    names = [*spellings.values()]
    if len(names) >= MAX_CLASSES:
        raise DatasetError(
            f"source: the masks have {len(names)} different names, such as {', '.join(names[:3])}, and at most "
            f"{MAX_CLASSES - 1} classes can be trained; give the masks of a class the same name in every case"
        )
    overlapping = ""
    for case_id, pairs in list(named.items())[:_NUM_LOOKED_AT]:
        files = [(spellings[name.casefold()], folder / path) for name, path in pairs]
        if not files:
            continue
        note, place = notes_about(path for _, path in files), _place_of(files[0][1])
        sizes: Counter[str] = Counter()
        for name, path in files:
            sizes[name] += int(read_mask(path, place, note).sum())
        by_size = sorted(sizes, key=lambda name: (-sizes[name], name))
        values = {name: number for number, name in enumerate(by_size, start=1)}
        where, taken = merge_masks(place, files, values, note=note).overlap()
        if where and not overlapping:
            overlapping = f"Masks overlap: in {case_id}, {where}, and count as {taken}."
            names = [*by_size, *(name for name in names if name not in sizes)]
    return {0: "background", **dict(enumerate(names, start=1))}, overlapping


def write_merged(
    folder: Path, masks: Mapping[str, Mapping[str, str]], labels: Mapping[int, str], out: Path, *, num_threads: int
) -> dict[str, int]:
    """Writes a label file for each case into `out`, and returns how many voxels of it lie in several masks.

    Where masks overlap, the class with the larger value is taken, as it is for structures in DICOM. Of labels by
    raters, what most say is taken; the smallest value where several are equally frequent.

    Args:
        folder: that paths start from.
        masks: paths by case id, each with its class.
        labels: class names by value, as `classes_of_masks` gives them; empty if files are labels of several raters.
        out: made if it does not exist.
        num_threads: cases at a time.

    Raises:
        OutputError: the folder or a file cannot be written.
        ScanError: a file cannot be read, files of a case lie on different grids, a mask has several values besides 0,
            or a label a value that is not a whole number.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"source: cannot make the folder {out} ({error.strerror}); write to another folder with -o"
        ) from None
    values = {name.casefold(): value for value, name in labels.items() if value}

    def write(case_id: str) -> int:
        files = [folder / path for path in masks[case_id]]
        place, note, num_shared = _place_of(files[0]), notes_about(files), 0
        if values:
            classes = [name.casefold() for name in masks[case_id].values()]
            named = [(name, path) for name, path in zip(classes, files, strict=True) if name in values]
            canvas = merge_masks(place, named, values, note=note)
            merged, num_shared = canvas.label(), sum(canvas.shared().values())
        else:
            merged = _majority(place, files, note)
        header = read_header(files[0])
        smallest = np.result_type(*(np.min_scalar_type(int(value)) for value in (merged.min(), merged.max())))
        write_scan(out / f"{case_id}.nii.gz", merged.astype(smallest), header.grid, placement=header.placement)
        return num_shared

    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        return dict(zip(masks, pool.map(write, masks), strict=True))


def _majority(place: tuple[Path, Grid], files: Sequence[Path], note: Note) -> Array:
    """What most raters say (x, y, z) int64; the smallest value where several are equally frequent."""
    labels = []
    for path in files:
        label, grid = read_labels(stage(path), where=f"decode: {path}", note=note)
        labels.append(turned_onto(label, place, (path, grid), where="decode: labels of raters", note=note))
    most, merged = np.zeros(place[1].shape, dtype=np.int16), np.zeros(place[1].shape, dtype=np.int64)
    for value in np.unique(np.concatenate([np.unique(label) for label in labels])):
        votes: Array = np.count_nonzero([label == value for label in labels], axis=0)
        wins = votes > most
        merged[wins], most[wins] = value, votes[wins]
    return merged


def _stem(path: str | Path) -> str:
    return stem_of(os.path.basename(path))


def _place_of(path: Path) -> tuple[Path, Grid]:
    return path, read_header(path).grid
