"""What must hold for the cases of every layout: ids that are unique and safe as file names, and files that exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from voxelocity.core.errors import DatasetError
from voxelocity.core.volume import VolumeRef

_FIRST_CHANNEL = "_0000"


def case_id_of(images: tuple[Path, ...], label: Path | None) -> str:
    """The id of a case that the list does not name: its first image's file name without the ending.

    nnU-Net's channel number is dropped where it is known to be one: among several images, or where the label file has
    the same name without it.
    """
    stem = _stem(images[0].name)
    shorter = stem.removesuffix(_FIRST_CHANNEL)
    if shorter and (len(images) > 1 or (label is not None and _stem(label.name) == shorter)):
        return shorter
    return stem


def check_refs(refs: Iterable[VolumeRef], *, listing: Path) -> tuple[VolumeRef, ...]:
    """The same cases, sorted by case id.

    Costs one listing of each folder that holds a file.

    Raises:
        DatasetError: two cases have one id, an id cannot be part of a file name, or a file does not exist.
    """
    ordered = tuple(sorted(refs, key=lambda ref: ref.case_id))
    for before, ref in zip((None, *ordered), ordered, strict=False):
        # Predictions and cache entries are called by the case id, so it must not lead to another folder.
        if not re.fullmatch(r"[^/\\\x00-\x1f\x7f]+", ref.case_id) or ref.case_id in (".", ".."):
            raise DatasetError(
                f"source: {listing}: case id {ref.case_id!r} cannot be part of a file name; "
                "rename it without slashes and control characters"
            )
        if before is not None and before.case_id == ref.case_id:
            raise DatasetError(
                f"source: {listing}: two cases are called {ref.case_id!r} ({before.images[0]} and {ref.images[0]}); "
                "rename one of the files, or name the cases in a 'case' column of a .csv table"
            )
    _check_files(ordered, listing)
    return ordered


def _check_files(refs: tuple[VolumeRef, ...], listing: Path) -> None:
    # One listing per folder in place of one stat per file: on network storage a stat costs a round trip each.
    files_by_folder: dict[str, frozenset[str]] = {}
    missing: list[str] = []
    num_files = 0
    for ref in refs:
        for path in (*ref.images, *(() if ref.label is None else (ref.label,))):
            num_files += 1
            folder, name = os.path.split(path)
            if folder not in files_by_folder:
                files_by_folder[folder] = _files_in(folder)
            if name not in files_by_folder[folder]:
                missing.append(str(path))
    if missing:
        raise DatasetError(
            f"source: {listing}: {len(missing)} of {num_files} files are missing, the first is {missing[0]}; "
            "complete the copy of the data set, or correct the list"
        )


def _files_in(folder: str) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            # is_file asks the disk again for links alone: a link that leads nowhere is a missing file.
            return frozenset(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: a name that no file system can hold.
        return frozenset()
    except OSError as error:
        raise DatasetError(f"source: {folder} cannot be read ({error.strerror}); check its permissions") from None


def _stem(name: str) -> str:
    for ending in (".nii.gz", ".nii"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return Path(name).stem
