"""Checks on the cases of every layout: ids must be unique and safe as file names, and files must exist.

Also has the words by which names of files are taken for labels or DICOM, and the names of all files below a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from voxelocity.core.scan_formats import ANALYZE, DICOM, SCAN_ENDINGS, stem_of
from voxelocity.core.volume import VolumeRef
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.plain import excerpt, shortened

_FIRST_CHANNEL = "_0000"
# File systems hold 255 bytes; predictions have an ending, and a process number while they are written.
_MAX_ID_BYTES = 220
DOCS = "docs/data-sets.md"
_MOST_ENTRIES, _MOST_FOLDERS = 20_000, 8
_SPLIT = r"(tr|train|training|va|val|validation|ts|te|test|testing)?"
LABEL = re.compile(
    rf"(^|[^a-z]){_SPLIT}(labels?|segm?s?|segmentations?|dseg|aseg|aparc|masks?|msk|gt|ground|(ground)?truth|annots?|"
    rf"annotations?|rois?|gtv[a-z]?){_SPLIT}([^a-z]|$)",
    re.I,
)
IMAGE = re.compile(rf"{_SPLIT}(images?|imgs?|volumes?){_SPLIT}", re.I)
_GLUED = re.compile(r"(?:images?|imgs?|volumes?|labels?|segs?|segmentations?|masks?)(\d+)", re.I)
_VOXELS = "{ending} files are the voxels of a pair: name the .hdr file of the same name, which must lie next to it"


def case_id_of(images: tuple[Path, ...], label: Path | None) -> str:
    """The id of a case that the list does not name: its first image's file name without the ending.

    nnU-Net's channel number is dropped where it certainly is one: with several images, or if the label file has the
    same name without it.
    """
    stem = stem_of(images[0].name)
    shorter = stem.removesuffix(_FIRST_CHANNEL)
    if shorter and (len(images) > 1 or (label is not None and stem_of(label.name) == shorter)):
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
        # Surrogates stand for bytes of a file name that are not UTF-8.
        if not re.fullmatch(r"[^/\\\x00-\x1f\x7f\ud800-\udfff]+", ref.case_id) or ref.case_id in (".", ".."):
            raise DatasetError(
                f"source: {listing}: case id {shortened(ref.case_id)} cannot be part of a file name; "
                "rename it without slashes, control characters, and bytes that are not UTF-8"
            )
        if before is not None and before.case_id == ref.case_id:
            raise DatasetError(
                f"source: {listing}: two cases are called {ref.case_id!r} ({excerpt(before.images[0])} and "
                f"{excerpt(ref.images[0])}); rename one of the files, or name the cases in a 'case' column of a .csv "
                "table"
            )
    _check_names(ordered, listing)
    _check_files(ordered, listing)
    return ordered


def conversion_of(folder: Path) -> str:
    """What to do about a folder whose files are no scans; the end of a sentence."""
    files = files_below(folder)
    other = next((cure for name in files if (cure := conversion_of_file(name))), "")
    if other:
        return other
    if any(name.lower().endswith(SCAN_ENDINGS) for name in files):
        return f"name one of its files; see {DOCS}"
    return f"add one, or give another folder: no scan was found in it; see {DOCS}"


def conversion_of_file(name: str) -> str:
    """Whom to name in place of a file of voxels without a header; "" for any other file."""
    ending = next((end for end in ANALYZE.voxels if name.lower().endswith(end)), "")
    return f"{_VOXELS.format(ending=ending)}; see {DOCS}" if ending else ""


def _check_names(refs: tuple[VolumeRef, ...], listing: Path) -> None:
    """Refuses ids whose predictions some disks could not store."""
    known: dict[str, str] = {}
    for ref in refs:
        if len(ref.case_id.encode()) > _MAX_ID_BYTES:
            raise DatasetError(
                f"source: {listing}: case id {shortened(ref.case_id)} has {len(ref.case_id.encode())} bytes, and a "
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
        for path in ref.files:
            num_files += 1
            folder, name = os.path.split(path)
            if folder not in files_by_folder:
                files_by_folder[folder] = _files_in(folder)
            if name in files_by_folder[folder]:
                continue
            # A folder of a DICOM series has files that are not named as scans are; one of masks has scans.
            are_scans = {inside.lower().endswith(SCAN_ENDINGS) for inside in _files_in(os.fspath(path))}
            if False in are_scans or (path == ref.label and True in are_scans):
                continue
            missing.append(str(path))
    if missing and os.path.isdir(missing[0]):
        raise DatasetError(
            f"source: {listing}: {missing[0]} is a folder, not a file; {conversion_of(Path(missing[0]))}"
        )
    if missing:
        raise DatasetError(
            f"source: {listing}: {len(missing)} of {num_files} files are missing, the first is {excerpt(missing[0])}; "
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
        raise DatasetError(
            f"source: {excerpt(folder)} cannot be read ({error.strerror}); check its permissions"
        ) from None


def is_label(name: str) -> bool:
    """Whether a path, with "/", has a word that labels are called by, in a folder or in its file name."""
    return LABEL.search(name) is not None


def name_without_label(name: str) -> str:
    """The words of a file name without its ending, its channel and those that only say image or label."""
    return _without_label(os.path.basename(name))


@lru_cache(maxsize=1 << 16)
def _without_label(name: str) -> str:
    stem = stem_of(name).removesuffix(_FIRST_CHANNEL)
    words = re.split(r"[-_. ]+", stem)
    # The number of "img0001" and "label0001" is what they share.
    words = [match[1] if (match := _GLUED.fullmatch(word)) else word for word in words]
    return "_".join(word for word in words if not LABEL.fullmatch(word) and not IMAGE.fullmatch(word))


def is_named_dicom(name: str) -> bool:
    """Whether the name of a file is one that DICOM files often have."""
    return name.lower().endswith(DICOM.endings) or os.path.basename(name) == "DICOMDIR"


def files_below(folder: Path, *, most: int = _MOST_ENTRIES) -> list[str]:
    """Paths of files relative to the folder, sorted; without hidden ones, and those beyond `most` and eight folders."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        below = os.path.relpath(place, folder)
        depth = 0 if below == os.curdir else below.count(os.sep) + 1
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _MOST_FOLDERS else []
        start = "" if below == os.curdir else below.replace(os.sep, "/") + "/"
        found += [start + name for name in sorted(files) if not name.startswith(".")]
        if len(found) > most:
            break
    return sorted(found)
