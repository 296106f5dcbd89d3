"""Where nnU-Net looks for trainers, and ours there."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from voxelocity_observe.core.errors import InputError, OutputError

FOLDER = Path(__file__).with_name("trainers")
"""Ours; nnU-Net finds them if its variable `nnUNet_extTrainer` names this folder."""
VARIABLE = "nnUNet_extTrainer"
_FILE = "nnUNetTrainerVoxelocity.py"
_BELOW = ("training", "nnUNetTrainer", "variants", _FILE)


def installed_place() -> Path:
    """Where our trainers lie, or would lie, in the installed nnU-Net.

    Raises:
        InputError: this Python has no nnU-Net v2.
    """
    try:
        spec = importlib.util.find_spec("nnunetv2")
    # Of a module that something else has put in its place.
    except ValueError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "nnunet: nnunetv2 is not installed in this Python; install Voxelocity in the environment that has "
            "nnUNetv2_train, and run this command there"
        )
    # Leftovers of another installation may come first.
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    found = [folder for folder in folders if folder.joinpath(*_BELOW[:2]).is_dir()]
    if not found:
        raise InputError(
            f"nnunet: {folders[0]} holds no trainers of nnU-Net v2; install nnunetv2 again, or set {VARIABLE}={FOLDER}"
        )
    return found[0].joinpath(*_BELOW)


def why_not_found() -> str:
    """Why the nnU-Net of this Python does not find our trainers by its variable; "" if it does."""
    try:
        paths = installed_place().parents[len(_BELOW) - 1] / "paths.py"
    except InputError as error:
        return str(error)
    if paths.is_file() and VARIABLE not in paths.read_text(errors="replace"):
        return f"nnunet: this release of nnU-Net does not know {VARIABLE}; give `voxelocity nnunet install` instead"
    return ""


def install() -> Path:
    """Copies our trainers into the installed nnU-Net, where it finds them without a variable.

    Raises:
        InputError: nnU-Net is not installed.
        OutputError: its folder cannot be written, or has a file of this name that is not ours.
    """
    place = installed_place()
    _check_ours(place)
    try:
        shutil.copyfile(FOLDER / _FILE, place)
    except OSError as error:
        raise OutputError(
            f"nnunet: {place} cannot be written: {error.strerror}; set {VARIABLE}={FOLDER} instead, which needs no copy"
        ) from error
    return place


def uninstall() -> Path:
    """Removes the copy that `install` made, if there is one.

    Raises:
        InputError: nnU-Net is not installed.
        OutputError: the file of this name is not ours, or cannot be removed.
    """
    place = installed_place()
    _check_ours(place)
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"nnunet: {place} cannot be removed: {error.strerror}") from error
    return place


def _check_ours(place: Path) -> None:
    if place.is_file() and "from voxelocity.nnunet.trainer import" not in place.read_text(errors="replace"):
        raise OutputError(f"nnunet: {place} is not a copy of our trainers; move it away first")
