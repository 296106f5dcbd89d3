"""Which fold holds a case out: given by the list, by `splits_final.json`, or by the position of its patient."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxelocity.core.errors import DatasetError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.description import kind_of, read_json
from voxelocity.data.source.patients import patients_of

SPLITS_NAME = "splits_final.json"


def assign_folds(
    refs: Sequence[VolumeRef], *, num_folds: int, splits_file: Path | None = None
) -> tuple[tuple[VolumeRef, ...], int]:
    """The cases with their folds and patients, and the number of folds.

    Patients that are not declared are derived from the names (`patients_of`). For folds, the first that exists decides:
    folds that any labeled case already has, `splits_file`, `default_folds`.

    Args:
        refs: cases sorted by case id.
        num_folds: folds to make if none are declared.
        splits_file: a file in the form of nnU-Net's `splits_final.json`; it may be missing.

    Raises:
        DatasetError: `splits_file` is malformed or contradicts the cases.
    """
    if all(ref.patient is None for ref in refs):
        patients = patients_of([ref.case_id for ref in refs])
        refs = [replace(ref, patient=patients[ref.case_id]) for ref in refs]
    labeled = [ref for ref in refs if ref.label is not None]
    declared = [ref.fold for ref in labeled if ref.fold is not None]
    if declared:
        return tuple(refs), max(declared) + 1
    case_ids = [ref.case_id for ref in labeled]
    if splits_file is not None and splits_file.exists():
        folds, num_folds = read_splits(splits_file, case_ids)
    else:
        by_case = {ref.case_id: ref.patient or ref.case_id for ref in labeled}
        num_folds = max(1, min(num_folds, len(set(by_case.values()))))
        folds = default_folds(by_case, num_folds)
    return tuple(replace(ref, fold=folds.get(ref.case_id)) for ref in refs), num_folds


def default_folds(patients: Mapping[str, str], num_folds: int) -> dict[str, int]:
    """Fold by case id: position of its patient, modulo `num_folds`, in the order of the case ids sorted as text.

    Deterministic; the numbers of patients in two folds differ by at most 1.

    Args:
        patients: patient by case id.
        num_folds: at most the number of patients.
    """
    ordered = dict.fromkeys(patients[case_id] for case_id in sorted(patients))
    fold_of = {patient: index % num_folds for index, patient in enumerate(ordered)}
    return {case_id: fold_of[patient] for case_id, patient in patients.items()}


def read_splits(path: Path, case_ids: Sequence[str]) -> tuple[dict[str, int], int]:
    """Fold by case id from nnU-Net's list of {"train": [...], "val": [...]}, and the number of folds.

    A case that is validated in fold k has fold k; one that is never validated has none. Every fold must place every
    case, because training would otherwise silently include the cases that a fold leaves out.

    Raises:
        DatasetError: the file is malformed, names an unknown case, names one twice in a fold, validates one in two
            folds, or leaves one out of a fold.
    """
    splits = read_json(path)
    if not isinstance(splits, list) or not splits:
        found = "an empty list" if splits == [] else kind_of(splits)
        raise _error(path, f'the top level is {found}; write a list of {{"train": [...], "val": [...]}}, one per fold')
    known = set(case_ids)
    folds: dict[str, int] = {}
    for fold, split in enumerate(splits):
        training, validation = _sides(path, fold, split)
        _check_fold(path, fold, training, validation, known)
        for case_id in validation:
            if case_id in folds:
                raise _error(
                    path,
                    f"case {case_id!r} is validated in fold {folds[case_id]} and again in fold {fold}; keep it in one",
                )
            folds[case_id] = fold
    return folds, len(splits)


def _sides(path: Path, fold: int, split: Any) -> tuple[list[str], list[str]]:
    sides: Mapping[str, Any] = split if isinstance(split, dict) else {}
    for key in ("train", "val"):
        ids = sides.get(key)
        if not isinstance(ids, list) or not all(isinstance(case_id, str) for case_id in ids):
            raise _error(
                path, f'fold {fold} has "{key}": {reprlib.repr(ids)}; write a list of case ids under "train" and "val"'
            )
    return sides["train"], sides["val"]


def _check_fold(path: Path, fold: int, training: list[str], validation: list[str], known: set[str]) -> None:
    placed: set[str] = set()
    for case_id in (*training, *validation):
        if case_id not in known:
            raise _error(
                path, f"fold {fold} names case {case_id!r}, which is not in the data set; correct the id or remove it"
            )
        if case_id in placed:
            where = 'under both "train" and "val"' if case_id in training and case_id in validation else "twice"
            raise _error(path, f"fold {fold} names case {case_id!r} {where}; keep it once")
        placed.add(case_id)
    left_out = sorted(known - placed)
    if left_out:
        raise _error(
            path,
            f"fold {fold} leaves out {len(left_out)} of {len(known)} cases, the first is {left_out[0]!r}; "
            'add each to "train" or "val", or remove it from the data set',
        )


def _error(path: Path, problem: str) -> DatasetError:
    return DatasetError(f"source: {path}: {problem}")
