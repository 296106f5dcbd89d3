"""The one way into a data set: finds the file that lists the cases, and the layout it is written in."""

from __future__ import annotations

import os
from pathlib import Path

from voxelocity.core.cases import Cases
from voxelocity.core.errors import ConfigError, DatasetError
from voxelocity.data.source.description import Description, kind_of
from voxelocity.data.source.msd import read_msd
from voxelocity.data.source.nnunet import read_nnunet
from voxelocity.data.source.table import read_table

DESCRIPTION_NAME = "dataset.json"
TABLE_SUFFIXES = (".csv", ".tsv")


def open_cases(path: Path | str, *, num_folds: int = 5) -> Cases:
    """The cases of the data set at `path`, sorted by case id, each with its files, which are known to exist.

    `path` is a folder with a `dataset.json`, a folder with one table (.csv or .tsv) and no `dataset.json`, or one such
    file by any name. The direction of "labels" in the JSON file tells its layout: {"0": "background"} is the Medical
    Segmentation Decathlon's ("msd"), {"background": 0} is nnU-Net v2's ("nnunet"). Tables are "csv"; they declare no
    classes, so `labels` stays empty, and name no channels.

    Folds come from the first of these that exists: a fold per case in the list itself, `splits_final.json` beside the
    `dataset.json`, or the default: labelled case ids sorted as text, fold = index % num_folds, with `num_folds` lowered
    to the number of labelled cases where there are fewer. A case without a declared fold is never held out.

    Costs one listing of each folder that holds scans, not a look at each file. No voxel and no header is read.
    The result depends on names and lists alone, not on the order in which the file system names them.

    Args:
        path: folder or file; relative paths and a leading `~` are resolved now, so that file names stay true later.
        num_folds: folds to make where none are declared, at least 2.

    Raises:
        DatasetError: nothing is there to open, the list is malformed or contradicts itself, or a file is missing.
        ConfigError: `num_folds` is below 2.
    """
    if num_folds < 2:
        raise ConfigError(f"source: num_folds = {num_folds} leaves no case to train on; choose 2 or more")
    root = Path(os.path.expanduser(path)).absolute()
    listing = _find_listing(root)
    if listing.suffix.lower() in TABLE_SUFFIXES:
        return read_table(listing, root=root, num_folds=num_folds)
    description = Description.read(listing)
    read = read_msd if _names_are_values(description) else read_nnunet
    return read(description, root=root, num_folds=num_folds)


def _find_listing(root: Path) -> Path:
    if os.path.isdir(root):
        return _find_listing_in_folder(root)
    if not os.path.isfile(root):
        raise DatasetError(f"source: {root} does not exist; check the spelling, or that the disk is mounted")
    if root.suffix.lower() not in (".json", *TABLE_SUFFIXES):
        raise DatasetError(
            f"source: {root} is neither a .json nor a .csv or .tsv file; "
            "give a data set's folder, its dataset.json or a table of cases"
        )
    return root


def _find_listing_in_folder(folder: Path) -> Path:
    if os.path.isfile(folder / DESCRIPTION_NAME):
        return folder / DESCRIPTION_NAME
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DatasetError(f"source: {folder} cannot be read ({error.strerror}); check its permissions") from None
    tables = [name for name in names if name.lower().endswith(TABLE_SUFFIXES) and os.path.isfile(folder / name)]
    if len(tables) == 1:
        return folder / tables[0]
    if tables:
        shown = ", ".join(tables[:4]) + (", ..." if len(tables) > 4 else "")
        raise DatasetError(
            f"source: {folder} holds {len(tables)} tables ({shown}) and no {DESCRIPTION_NAME}; give the path of one"
        )
    inner = next((name for name in names if os.path.isfile(folder / name / DESCRIPTION_NAME)), None)
    cure = f"did you mean {folder / inner}?" if inner else "add one, or give another folder"
    raise DatasetError(f"source: {folder} holds neither a {DESCRIPTION_NAME} nor a .csv or .tsv table of cases; {cure}")


def _names_are_values(description: Description) -> bool:
    """Whether "labels" leads from number to name (MSD); False where it leads from name to number (nnU-Net v2)."""
    labels = description.require("labels", dict)
    texts = [key for key, value in labels.items() if isinstance(value, str)]
    if texts and len(texts) < len(labels):
        other = next(key for key in labels if key not in texts)
        raise description.error(
            f'"labels" mixes two directions: "{texts[0]}" leads to a text and "{other}" to {kind_of(labels[other])}; '
            'write all of them as {"0": "background"} (MSD) or as {"background": 0} (nnU-Net)'
        )
    return bool(texts) or not labels
