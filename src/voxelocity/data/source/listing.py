"""Checks on the cases of every layout: ids must be unique and safe as file names, and files must exist."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path

from voxelocity.core.errors import DatasetError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.layout import conversion_of

_FIRST_CHANNEL = "_0000"
# File systems hold 255 bytes; predictions have an ending, and a process number while they are written.
_MAX_ID_BYTES = 220


def case_id_of(images: tuple[Path, ...], label: Path | None) -> str:
    """The id of a case that the list does not name: its first image's file name without the ending.

    nnU-Net's channel number is dropped where it certainly is one: with several images, or if the label file has the
    same name without it.
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
        DatasetError: two cases have one id, or ids that differ only in capitalization, an id cannot be part of a file
            name, or a file does not exist.
    """
    ordered = tuple(sorted(refs, key=lambda ref: ref.case_id))
    for before, ref in zip((None, *ordered), ordered, strict=False):
        # Predictions and cache entries are named after the case id, so it must not lead to another folder.
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
    _check_names(ordered, listing)
    _check_files(ordered, listing)
    return ordered


def _check_names(refs: tuple[VolumeRef, ...], listing: Path) -> None:
    """Refuses ids whose predictions some disks could not store."""
    known: dict[str, str] = {}
    for ref in refs:
        if len(ref.case_id.encode()) > _MAX_ID_BYTES:
            raise DatasetError(
                f"source: {listing}: case id {reprlib.repr(ref.case_id)} has {len(ref.case_id.encode())} bytes, and a "
                f"file name holds {_MAX_ID_BYTES} of them besides its ending; shorten it, or name the case in a 'case' "
                "column of a .csv table"
            )
        other = known.setdefault(ref.case_id.casefold(), ref.case_id)
        if other != ref.case_id:
            raise DatasetError(
                f"source: {listing}: case ids {other!r} and {ref.case_id!r} differ only in capitalization, so their "
                "predictions would be one file on disks that ignore it; rename one of them"
            )


def _check_files(refs: tuple[VolumeRef, ...], listing: Path) -> None:
    # One listing per folder instead of one stat per file: on network storage each stat costs a round trip.
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
    if missing and os.path.isdir(missing[0]):
        raise DatasetError(
            f"source: {listing}: {missing[0]} is a folder, not a file; {conversion_of(Path(missing[0]))}"
        )
    if missing:
        raise DatasetError(
            f"source: {listing}: {len(missing)} of {num_files} files are missing, the first is {missing[0]}; "
            "complete the copy of the data set, or correct the list"
        )


def _files_in(folder: str) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            # is_file accesses the disk again only for links: a link that leads nowhere is a missing file.
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
