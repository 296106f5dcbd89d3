"""What our trainers check before nnU-Net trains: its folders, plans and folds, with errors that say what helps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.quantities import count_text, listed

_CASES = (".b2nd", ".npz")
# Next to those of the cases: their notes, and arrays that nnU-Net unpacked.
_BESIDES = (".pkl", ".npy")
_LOADER = ("transforms", "get_indices", "get_do_oversample", "get_bbox", "patch_size_was_2d", "final_patch_size")
_NUM_NAMED = 3


def check_folder(trainer: Any) -> None:
    """Refuses preprocessed cases over which nnU-Net would stumble, or that are of another data set.

    Raises:
        InputError: the folder is not known, missing, of two releases, or its plans are of another data set.
    """
    name, configuration = trainer.plans_manager.dataset_name, trainer.configuration_name
    again = f"`voxelocity nnunet preprocess {name} -c {configuration}`"
    if trainer.preprocessed_dataset_folder_base is None:
        raise ConfigError(
            "nnunet: nnUNet_preprocessed is not set; export nnUNet_preprocessed=FOLDER, the one that "
            "nnUNetv2_plan_and_preprocess wrote to"
        )
    base, folder = Path(trainer.preprocessed_dataset_folder_base), Path(trainer.preprocessed_dataset_folder)
    _check_plans(trainer, base)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    first = {path.suffix: path.name for path in files if path.suffix not in _BESIDES}
    if not {*first} & {*_CASES}:
        what = "holds no case" if folder.is_dir() else "is missing"
        raise InputError(f"nnunet: {folder} {what}; make it by {again} or nnUNetv2_preprocess")
    if len(first) > 1:
        raise InputError(
            f"nnunet: {folder} holds {' and '.join(sorted(first.values()))}, but nnU-Net identifies the release by a "
            f"single file ending; remove foreign files, or preprocess again by {again} "
            "--overwrite"
        )


def _check_plans(trainer: Any, base: Path) -> None:
    """Refuses plans that were copied from another data set: nnU-Net would train on that one's cases."""
    path = base / "dataset.json"
    kept = _read(path, "copy it from the raw data set") if path.is_file() else None
    for key in ("labels", "channel_names", "numTraining"):
        if isinstance(kept, dict) and kept.get(key) != trainer.dataset_json.get(key):
            raise InputError(
                f"nnunet: the plans {trainer.plans_manager.plans_name} are of {base.name}, whose {path} has another "
                f"{key!r} than the data set to train on; nnU-Net would train on the cases of {base.name}. Plan your "
                "own data set, or move plans with nnUNetv2_move_plans_between_datasets"
            )


def check_fold(trainer: Any) -> str:
    """Refuses a fold that nnU-Net would take for another; returns what the user should know of a random one, or "".

    Raises:
        InputError: the fold is negative, or the file of the folds is damaged.
    """
    fold, path = trainer.fold, Path(trainer.preprocessed_dataset_folder_base, "splits_final.json")
    if fold == "all":
        return ""
    if fold < 0:
        raise InputError(f"nnunet: fold {fold} does not exist; folds count from 0, and `all` trains on every case")
    if not path.is_file():
        return ""
    splits = _read(path, "correct it, or delete it, so that nnU-Net creates new folds")
    if not isinstance(splits, list) or not all(map(_is_split, splits)):
        raise InputError(
            f"nnunet: {path} is not a list of folds with their cases under 'train' and 'val'; correct it, or delete "
            "it, so that nnU-Net creates new folds"
        )
    if fold < len(splits):
        return ""
    return (
        f"fold {fold} is none of the {len(splits)} in {path}: nnU-Net trains on a random 80 % of the cases, "
        f"independently of the other folds; if that is not intended, choose a fold from 0 to {len(splits) - 1}"
    )


def _is_split(split: Any) -> bool:
    return isinstance(split, dict) and all(isinstance(split.get(part), list) for part in ("train", "val"))


def check_split(trainer: Any, split: Sequence[Sequence[str]]) -> None:
    """Refuses a fold whose cases are not there.

    Args:
        trainer: nnU-Net's.
        split: identifiers of the cases to train on, and to validate on.

    Raises:
        InputError: they are not, or there are none.
    """
    kind, folder = getattr(trainer, "dataset_class", None), trainer.preprocessed_dataset_folder
    if kind is None:
        # Releases before 2.6, which `loader_of` refuses.
        return
    present, path = {*kind.get_identifiers(folder)}, Path(trainer.preprocessed_dataset_folder_base)
    cure = f"correct {path / 'splits_final.json'}, or delete it, so that nnU-Net creates new folds"
    for does, identifiers in zip(("trains", "validates"), split, strict=True):
        if len(identifiers) == 0:
            raise InputError(f"nnunet: fold {trainer.fold} {does} on no case; {cure}")
        if absent := sorted({*map(str, identifiers)} - present):
            raise InputError(
                f"nnunet: fold {trainer.fold} {does} on {count_text(len(absent), 'case')} that {folder} does not hold "
                f"({listed(absent, _NUM_NAMED)}); preprocess them, or {cure}"
            )


def check_previous_stage(trainer: Any, split: Sequence[Sequence[str]]) -> None:
    """Refuses the second network of a cascade whose first one has not predicted all of its cases.

    Arguments as `check_split`.

    Raises:
        InputError: it has not.
    """
    folder = Path(trainer.folder_with_segs_from_previous_stage)
    predicted = {*trainer.dataset_class.get_identifiers(str(folder))} if folder.is_dir() else set[str]()
    if absent := sorted({str(identifier) for part in split for identifier in part} - predicted):
        raise InputError(
            f"nnunet: {folder} holds no prediction of {count_text(len(absent), 'case')} "
            f"({listed(absent, _NUM_NAMED)}) for this second network of a cascade; train every fold of "
            f"{trainer.configuration_manager.previous_stage_name} with -tr {type(trainer).__name__} first: each "
            "predicts the cases that it validates"
        )


def loader_of(augmenter: Any, trainer: Any) -> Any:
    """The loader behind one of nnU-Net's augmenters.

    Raises:
        InputError: the trainer makes its batches in a way that our feed cannot take over, or nnU-Net is too old.
    """
    loader = getattr(augmenter, "data_loader", None)
    if loader is None:
        raise InputError(
            f"nnunet: the trainer of nnU-Net behind {type(trainer).__name__} makes its batches in its own way, which "
            "our feed cannot replace; train with the original trainer"
        )
    if missing := [name for name in _LOADER if not hasattr(loader, name)] + _missing_of(loader):
        raise InputError(
            f"nnunet: the loader of this release of nnU-Net has no {missing[0]}; our trainers need nnU-Net 2.6 or "
            "newer: pip install --upgrade nnunetv2"
        )
    return loader


def _missing_of(loader: Any) -> list[str]:
    dataset = getattr(loader, "_data", None)
    return [name for name in ("identifiers", "load_case") if not hasattr(dataset, name)]


def _read(path: Path, cure: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    # What is not UTF-8 is a ValueError too.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"nnunet: {path} cannot be read ({error}); {cure}") from None
