"""Which fold holds a case out: given by the list, by `splits_final.json`, or by the position of its patient.

Which cases are scans of one patient is derived from their names: folds must keep these together. Names only count where
the groups are plausible. If all cases share the name before a number, the number counts cases, as in case_001 to
case_099, and says nothing about patients. Where names tell nothing at all, neighbors in the order of names share a
fold, because visits of a patient are neighbors under most names.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import kind_of, read_json, source_error
from voxelocity_observe.core.plain import shortened

SPLITS_NAME = "splits_final.json"
_BIDS = re.compile(r"(?:^|[_/])(sub-[A-Za-z0-9]+)(?=_|$)")
_SPLIT = re.compile(r"[-_. ]+")
# Sides and points in time: words count anywhere in a name; what could be a contrast or a site counts only at its end.
_BEFORE_NUMBERS = "ses|session|visit|timepoint|time|tp|day|week|month|year|fu|frame|phase"
_ANYWHERE = re.compile(
    rf"left|right|pre|post|preop|postop|baseline|follow-?up\d*|({_BEFORE_NUMBERS})\d+", re.IGNORECASE
)
_AT_END = re.compile(r"[lr]|[lr][ht]|(v|t|m|scan|run)\d+", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*\d.*)[-_. ](\d{1,3}|\d{8})")
_DATE = r"\d{8}|\d{4}[-_.]\d{1,2}([-_.]\d{1,2})?|\d{1,2}[-_.]\d{1,2}[-_.]\d{4}"
# What follows the name of a patient: a date, two numbers (a visit and its repetition), a word, or letters after a
# number.
_TAILS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<stem>.*\d.*?)[-_. ](?P<tail>{_DATE})",
        r"(?P<stem>.*\d.*?)[-_. ](?P<tail>\d[-_. ]\d)",
        r"(?P<stem>.*\d.*)[-_. ](?P<tail>[A-Za-z][^-_. ]*)",
        r"(?P<stem>.*\d)(?P<tail>[A-Za-z]{1,9}\d{0,3})",
        r"(?P<tail>[A-Za-z]{1,12})[-_. ](?P<stem>.*\d.*)",
    )
)
# Of a patient and a visit in one number: each patient's visits begin at 0 or 1 and leave none out.
_GLUED = tuple(re.compile(rf"(?P<stem>.*\d)(?P<tail>\d{{{digits}}})") for digits in (2, 1))
_MEAN_SCANS, _MOST_SCANS = 4, 24
_MEAN_NAMED_SCANS = 8
# Fewer cases have few enough names for anyone to look at.
_FEWEST_TOLD = 5


def assign_folds(
    refs: Sequence[VolumeRef], *, num_folds: int, splits_file: Path | None = None
) -> tuple[tuple[VolumeRef, ...], int]:
    """The cases with their folds and patients, and the number of folds.

    Patients that are not declared are derived from the names (`patients_of`); cases that share their first image or
    their label are of one patient, whatever is declared. For folds, the first that exists decides: folds that any
    labeled case already has, `splits_file`, `default_folds`.

    Args:
        refs: cases sorted by case id.
        num_folds: folds to make if none are declared.
        splits_file: a file in the form of nnU-Net's `splits_final.json`; it may be missing.

    Raises:
        DatasetError: `splits_file` is malformed or contradicts the cases.
    """
    are_declared = any(ref.patient is not None for ref in refs)
    if not are_declared:
        patients = patients_of([ref.case_id for ref in refs])
        if len({patients[ref.case_id] for ref in refs if ref.label is not None}) < 2:
            # Scans without labels have names of their own, as in a folder of test scans.
            patients |= patients_of([ref.case_id for ref in refs if ref.label is not None])
        refs = [replace(ref, patient=patients[ref.case_id]) for ref in refs]
    own = {ref.case_id: ref.patient or ref.case_id for ref in refs}
    refs = _with_shared_files(refs, own)
    labeled = [ref for ref in refs if ref.label is not None]
    declared = [ref.fold for ref in labeled if ref.fold is not None]
    if declared:
        return tuple(refs), max(declared) + 1
    case_ids = [ref.case_id for ref in labeled]
    if splits_file is not None and splits_file.exists():
        folds, num_folds, unused = read_splits(splits_file, case_ids)
        refs = [ref for ref in refs if ref.case_id not in unused]
    else:
        by_case = {ref.case_id: ref.patient or ref.case_id for ref in labeled}
        if len(set(by_case.values())) < 2:
            # All may be volumes of one scan: they are divided nevertheless, and the plan says that a patient is shared.
            by_case = {case_id: own[case_id] for case_id in by_case}
        num_folds = max(1, min(num_folds, len(set(by_case.values()))))
        are_unknown = not are_declared and _tell_nothing([ref.case_id for ref in refs], by_case)
        folds = {case_id: (fold,) for case_id, fold in default_folds(by_case, num_folds, in_blocks=are_unknown).items()}
        if are_unknown and len(labeled) >= _FEWEST_TOLD:
            first, second = sorted(by_case)[:2]
            warnings.warn(
                f"source: the names of the {len(labeled)} labeled cases, such as {first} and {second}, do not show "
                "which are of one patient, so each counts as a separate patient. A patient on both sides of a split "
                "makes scores too high: name patients in a column 'patient' of a table of cases. Until then, "
                "neighbors in the order of names are held out together",
                stacklevel=2,
            )
    return tuple(_held_out(ref, folds.get(ref.case_id, ())) for ref in refs), num_folds


def _with_shared_files(refs: Sequence[VolumeRef], patients: Mapping[str, str]) -> Sequence[VolumeRef]:
    """The cases, of one patient where they are volumes of one scan, two phases with one label, or labels by two raters.

    Other images may be of all patients, such as an atlas.
    """
    merged: dict[str, str] = {}
    first_with: dict[Path, str] = {}

    def whole(patient: str) -> str:
        while patient in merged:
            patient = merged[patient]
        return patient

    for ref in refs:
        for file in (ref.images[0], ref.label or ref.images[0]):
            patient = whole(patients[ref.case_id])
            first = whole(first_with.setdefault(file, patient))
            if first != patient:
                merged[patient] = first
    return [replace(ref, patient=whole(patients[ref.case_id])) for ref in refs] if merged else refs


def _held_out(ref: VolumeRef, folds: tuple[int, ...]) -> VolumeRef:
    return replace(ref, fold=folds[0] if folds else None, more_folds=folds[1:])


def default_folds(patients: Mapping[str, str], num_folds: int, *, in_blocks: bool = False) -> dict[str, int]:
    """Fold by case id: position of its patient, modulo `num_folds`, in the order of the case ids sorted as text.

    Deterministic; the numbers of patients in two folds differ by at most 1.

    Args:
        patients: patient by case id.
        num_folds: at most the number of patients.
        in_blocks: give neighbors in that order the same fold instead.
    """
    ordered = dict.fromkeys(patients[case_id] for case_id in sorted(patients))
    if in_blocks:
        fold_of = {patient: index * num_folds // len(ordered) for index, patient in enumerate(ordered)}
    else:
        fold_of = {patient: index % num_folds for index, patient in enumerate(ordered)}
    return {case_id: fold_of[patient] for case_id, patient in patients.items()}


def read_splits(path: Path, case_ids: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], int, set[str]]:
    """Folds by case id from nnU-Net's list of {"train": [...], "val": [...]}, the number of folds, and the test cases.

    A case that is validated in fold k has fold k; one that is never validated has none. Repeated splits validate a case
    in several folds. Cases that no fold places are a fixed test set, and said so. Every fold must place every other
    case, because training would otherwise silently include the cases that a fold leaves out.

    Raises:
        DatasetError: the file is malformed, names an unknown case, names one twice in a fold, or leaves one out of one.
    """
    splits = read_json(path)
    if not isinstance(splits, list) or not splits:
        found = "an empty list" if splits == [] else kind_of(splits)
        raise source_error(
            path, f'the top level is {found}; write a list of {{"train": [...], "val": [...]}}, one per fold'
        )
    sides = [_sides(path, fold, split) for fold, split in enumerate(splits)]
    placed = {case_id for training, validation in sides for case_id in (*training, *validation)}
    known, unused = set(case_ids) & placed, set(case_ids) - placed
    if not known:
        known, unused = set(case_ids), set()
    folds: dict[str, tuple[int, ...]] = {}
    for fold, (training, validation) in enumerate(sides):
        _check_fold(path, fold, training, validation, known)
        for case_id in validation:
            folds[case_id] = (*folds.get(case_id, ()), fold)
    if unused:
        warnings.warn(
            f"source: {path} places {len(unused)} of {len(case_ids)} cases in no fold, such as {min(unused)!r}; they "
            "are a test set, used neither for training nor for validation",
            stacklevel=3,
        )
    return folds, len(splits), unused


def patients_of(case_ids: Sequence[str]) -> dict[str, str]:
    """Case id to the name of its patient, which is the case id itself unless the names show a group.

    Patients come from BIDS names (sub-01_ses-2), from words for sides and times (p7_left, p7_right, p7_visit2), and
    from numbers after a name that has a number itself (p07_1, p07_2). The last two count only if no patient has more
    than 24 cases; numbers also only if patients have at most 4 on average and mostly count from 0 or 1. If none of
    these is there, any other ending or beginning counts that leaves names with numbers which several cases share
    (P07_ED, P07_ES; P07a, P07b; P07_2020-01-31), or a visit written directly after the patient's number (site_0800,
    site_0801).
    """
    patients = {case_id: _subject(case_id) or _without_markers(case_id) for case_id in case_ids}
    if _largest(patients) > _MOST_SCANS or len(set(patients.values())) < 2:
        patients = {case_id: _subject(case_id) or case_id for case_id in case_ids}
    by_stem: dict[str, list[str]] = defaultdict(list)
    for case_id, patient in patients.items():
        numbered = None if _subject(case_id) else _NUMBERED.fullmatch(patient)
        if numbered:
            by_stem[numbered[1]].append(case_id)
    if _are_patients(by_stem):
        stems = {case_id: stem for stem, ids in by_stem.items() for case_id in ids}
        patients = {case_id: stems.get(case_id, patient) for case_id, patient in patients.items()}
    elif len(set(patients.values())) == len(patients):
        patients = _by_tails(case_ids) or patients
    # A patient with one scan has the name of its case.
    count = Counter(patients.values())
    return {case_id: patient if count[patient] > 1 else case_id for case_id, patient in patients.items()}


def _sides(path: Path, fold: int, split: Any) -> tuple[list[str], list[str]]:
    sides: Mapping[str, Any] = split if isinstance(split, dict) else {}
    for key in ("train", "val"):
        ids = sides.get(key)
        if not isinstance(ids, list) or not all(isinstance(case_id, str) for case_id in ids):
            raise source_error(
                path, f'fold {fold} has "{key}": {shortened(ids)}; write a list of case ids under "train" and "val"'
            )
    return sides["train"], sides["val"]


def _check_fold(path: Path, fold: int, training: list[str], validation: list[str], known: set[str]) -> None:
    placed: set[str] = set()
    for case_id in (*training, *validation):
        if case_id not in known:
            raise source_error(
                path,
                f"fold {fold} names case {shortened(case_id)}, which is not in the data set; correct the id or "
                "remove it",
            )
        if case_id in placed:
            where = 'under both "train" and "val"' if case_id in training and case_id in validation else "twice"
            raise source_error(path, f"fold {fold} names case {shortened(case_id)} {where}; keep it once")
        placed.add(case_id)
    left_out = sorted(known - placed)
    if left_out:
        raise source_error(
            path,
            f"fold {fold} leaves out {len(left_out)} of {len(known)} cases, the first is {left_out[0]!r}; "
            'add each to "train" or "val", or remove it from the data set',
        )


def _subject(case_id: str) -> str | None:
    found = _BIDS.search(case_id)
    return found[1] if found else None


def _without_markers(case_id: str) -> str:
    """The id without words for a side or a time; the id itself where nothing else is left of it."""
    words = _SPLIT.split(case_id)
    kept: list[str] = []
    place = 0
    while place < len(words):
        word, after = words[place], words[place + 1 :]
        if (
            after
            and word.lower() in _BEFORE_NUMBERS.split("|")
            and re.fullmatch(r"\d+|pre|post|baseline", after[0], re.IGNORECASE)
        ):
            place += 2
            continue
        is_marker = _ANYWHERE.fullmatch(word) or (not after and kept and _AT_END.fullmatch(word))
        if not is_marker:
            kept.append(word)
        place += 1
    has_number = any(re.search(r"\d", word) for word in kept)
    return "_".join(kept) if has_number and len(kept) < len(words) else case_id


def _by_tails(case_ids: Sequence[str]) -> dict[str, str]:
    """Patient by case id, where nearly all names are a patient and one of these tails; empty if they are not."""
    ending = _shared_ending(case_ids)
    for pattern in (*_TAILS, *_GLUED):
        parts = {case_id: found for case_id in case_ids if (found := pattern.fullmatch(case_id.removesuffix(ending)))}
        groups: dict[str, list[str]] = defaultdict(list)
        for found in parts.values():
            groups[found["stem"]].append(found["tail"])
        sizes = [len(tails) for tails in groups.values()]
        # A name alone, such as that of a patient with one visit, may be written in another way.
        if 2 * len(parts) <= len(case_ids) or len(groups) < 2 or max(sizes) == 1 or max(sizes) > _MOST_SCANS:
            continue
        is_glued = pattern in _GLUED
        most = _MEAN_SCANS if is_glued else _MEAN_NAMED_SCANS
        if 2 * sum(size > 1 for size in sizes) < len(sizes) or sum(sizes) > most * len(sizes):
            continue
        # Before the visit, the patient's number counts on.
        series = {stem.rstrip("0123456789") for stem in groups}
        if is_glued and (2 * len(series) > len(groups) or not all(map(_are_visits, groups.values()))):
            continue
        return {case_id: parts[case_id]["stem"] if case_id in parts else case_id for case_id in case_ids}
    return {}


def _shared_ending(case_ids: Sequence[str]) -> str:
    """The words at the end that all names share, as "-ax"."""
    ending = ""
    while True:
        found = {
            match[0] if (match := re.search(r"[-_. ][A-Za-z]+\Z", case_id.removesuffix(ending))) else ""
            for case_id in case_ids
        }
        if len(found) != 1 or "" in found:
            return ending
        ending = found.pop() + ending


def _are_visits(tails: Sequence[str]) -> bool:
    numbers = sorted(map(int, tails))
    return numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _tell_nothing(case_ids: Sequence[str], patients: Mapping[str, str]) -> bool:
    """Whether no two cases have one patient, and the names are not merely counted in one or few series."""
    if len(set(patients.values())) < len(patients):
        return False
    series = {re.sub(r"\d+", "#", case_id) for case_id in case_ids}
    return len(series) > max(2, len(case_ids) // 10)


def _are_patients(by_stem: dict[str, list[str]]) -> bool:
    sizes = [len(ids) for ids in by_stem.values()]
    if len(sizes) < 2 or max(sizes) == 1 or max(sizes) > _MOST_SCANS or sum(sizes) > _MEAN_SCANS * len(sizes):
        return False
    firsts = [min(int(_last_number(case_id)) for case_id in ids) for ids in by_stem.values()]
    are_dates = [len(_last_number(ids[0])) == 8 for ids in by_stem.values()]
    num_counted = sum(first <= 1 or is_date for first, is_date in zip(firsts, are_dates, strict=True))
    return 2 * num_counted >= len(firsts)


def _last_number(case_id: str) -> str:
    last: str = re.findall(r"\d+", case_id)[-1]
    return last


def _largest(patients: dict[str, str]) -> int:
    return max(Counter(patients.values()).values(), default=0)
