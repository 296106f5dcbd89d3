"""The entry point to a data set: finds the file that lists the cases, and its layout."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import replace
from pathlib import Path

from voxelocity.core.cases import Cases
from voxelocity.core.remote import remote_url
from voxelocity.core.scan_formats import SCAN_ENDINGS, format_named
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.described import read_described
from voxelocity.data.source.description import Description
from voxelocity.data.source.folder import what_it_holds
from voxelocity.data.source.table import read_table
from voxelocity_observe.core.errors import ConfigError, DatasetError, missing_path
from voxelocity_observe.core.links import leads_out
from voxelocity_observe.core.quantities import count_text, listed

DESCRIPTION_NAME = "dataset.json"
TABLE_SUFFIXES = (".csv", ".tsv")
# A list of a million cases has less.
_MOST_LIST_BYTES = 256 << 20
TABLE_NAME = "cases.csv"
"""Of the table that `voxelocity init` writes; it is opened whatever other tables its folder holds."""
# Where git-annex keeps the files that its links lead to.
_ANNEX = "/.git/annex/objects/"


def open_cases(path: Path | str, *, num_folds: int = 5) -> Cases:
    """The cases of the data set at `path`, sorted by case id, each with its files, which are known to exist.

    `path` is a folder with a `dataset.json`, a folder with one table (.csv or .tsv) and no `dataset.json`, or one such
    file by any name. The direction of "labels" in the JSON file decides the layout: {"0": "background"} is the Medical
    Segmentation Decathlon's ("msd"), {"background": 0} is nnU-Net v2's ("nnunet"). Tables are "csv"; they declare no
    classes, so `labels` stays empty, and name no channels. A `dataset.json` next to the table that lists no cases can
    add "labels" and "channel_names".

    Folds come from the first of these that exists: a fold per case in the list itself, `splits_final.json` next to the
    `dataset.json`, or the default: patients in the order of their labeled case ids, sorted as text, and fold = index %
    num_folds, with `num_folds` lowered to the number of patients where there are fewer. Every case is a separate
    patient, unless a `patient` column of a table says otherwise, or names do (p07_left, p07_right; sub-01_ses-1). A
    case without a declared fold is never held out.

    Costs one listing of each folder that holds scans, not a check of each file. Reads no voxels and no headers. The
    result depends only on names and lists, not on the order in which the file system returns them.

    A URL (`s3://...`, `https://...`, whatever fsspec opens) is mirrored by names; scans are fetched when they are read
    (`data.source.remote`).

    Args:
        path: folder, file or URL; relative paths and a leading `~` are resolved now, so that file names stay valid
            later.
        num_folds: folds to make if none are declared, at least 2.

    Raises:
        DatasetError: there is nothing to open, the list is malformed or contradicts itself, or a file is missing.
        ConfigError: `num_folds` is below 2.
    """
    if num_folds < 2:
        raise ConfigError(f"source: num_folds = {num_folds} leaves no case to train on; choose 2 or more")
    cases = _read_listing(_local(path), num_folds)
    _warn_of_links(cases)
    names = tuple((name, value) for value, name in cases.labels.items() if value != 0)
    if cases.regions:
        names = tuple((name, value) for name, values in cases.regions.items() for value in values)
    return replace(cases, refs=tuple(_with_structures(ref, names) for ref in cases.refs))


def _warn_of_links(cases: Cases) -> None:
    """Warns once of files in the folder of the data set that are links to files elsewhere; these are read."""
    root = cases.root if cases.root.is_dir() else cases.root.parent
    inside = os.path.join(root, "")
    files = (file for ref in cases.refs for file in (*ref.images, ref.label) if file is not None)
    below = [file for file in dict.fromkeys(files) if os.path.normpath(file).startswith(inside)]
    links, labels = functools.cache(_links_in), {ref.label for ref in cases.refs}
    has_linked_folder = {folder: leads_out(folder, root) for folder in dict.fromkeys(file.parent for file in below)}
    found = [file for file in below if has_linked_folder[file.parent] or file.name in links(file.parent)]
    found += [
        folder / name
        for folder in dict.fromkeys(map(_folder_read_with, below))
        if folder is not None
        for name in sorted(links(folder))
        if folder in labels or not name.lower().endswith(SCAN_ENDINGS)
    ]
    away = [file for file in found if leads_out(file, root) and _ANNEX not in os.path.realpath(file)]
    if away:
        warnings.warn(
            f"source: {count_text(len(away), 'file')} of the data set below {root} are links to files outside of it, "
            f"such as {away[0]} to {os.path.realpath(away[0])}; they are read. If the data set came from someone "
            "else, check the targets",
            stacklevel=3,
        )


def _folder_read_with(file: Path) -> Path | None:
    """The folder that may hold more files of a scan: slices of its series, or its voxels if its header is detached."""
    named = format_named(file.name)
    if named is not None and named.is_one_file:
        return None
    return file if named is None and file.is_dir() else file.parent


def _links_in(folder: Path) -> set[str]:
    """Names of the links in a folder, by one listing."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:
        # Whatever ails it is reported when its files are read.
        return set()


def _local(path: Path | str) -> Path:
    """The path, absolute; for a URL that of its mirror on this machine."""
    from voxelocity.data.source.remote import open_mirror, reopen_mirror

    if url := remote_url(path):
        return open_mirror(url)
    local = Path(os.path.expanduser(path)).absolute()
    reopen_mirror(local if local.suffix.lower() not in _LISTS else local.parent)
    return local


def _read_listing(root: Path, num_folds: int) -> Cases:
    listing = _find_listing(root)
    return _LISTS[listing.suffix.lower()](listing, root, num_folds)


def _read_table(listing: Path, root: Path, num_folds: int) -> Cases:
    beside = listing.parent / DESCRIPTION_NAME
    described = Description.read(beside) if os.path.isfile(beside) else None
    names = None if described is None or described.lists_cases else described
    return read_table(listing, root=root, num_folds=num_folds, description=names)


def _read_json(listing: Path, root: Path, num_folds: int) -> Cases:
    description = Description.read(listing)
    if not description.lists_cases and len(tables := _tables_in(description.folder)) == 1:
        table = description.folder / tables[0]
        return read_table(table, root=root, num_folds=num_folds, description=description)
    return read_described(description, root=root, num_folds=num_folds)


_LISTS = {".json": _read_json, **dict.fromkeys(TABLE_SUFFIXES, _read_table)}


def _with_structures(ref: VolumeRef, names: tuple[tuple[str, int], ...]) -> VolumeRef:
    """The case with the classes by name if its label may be DICOM, which has names; other formats have values."""
    if ref.label is None or ref.label.name.lower().endswith(SCAN_ENDINGS):
        return ref
    return replace(ref, structures=names)


def _find_listing(root: Path) -> Path:
    if os.path.isdir(root):
        return _find_listing_in_folder(root)
    if not os.path.isfile(root):
        raise DatasetError(f"source: {missing_path(root)}; check the spelling, or that the disk is mounted")
    if root.suffix.lower() not in _LISTS:
        raise DatasetError(
            f"source: {root} is neither a .json nor a .csv or .tsv file; "
            "give a data set's folder, its dataset.json or a table of cases"
        )
    return root


def _find_listing_in_folder(folder: Path) -> Path:
    if os.path.isfile(folder / DESCRIPTION_NAME):
        return folder / DESCRIPTION_NAME
    tables = _tables_in(folder)
    found = tables or [name for name in _names_in(folder) if lists_cases(folder / name)]
    if len(found) == 1:
        return folder / found[0]
    if found:
        shown = listed(found)
        what = f"tables ({shown}) and no {DESCRIPTION_NAME}" if tables else f"lists of cases ({shown})"
        raise DatasetError(f"source: {folder} holds {len(found)} {what}; give the path of one")
    inner = next((name for name in _names_in(folder) if os.path.isfile(folder / name / DESCRIPTION_NAME)), None)
    cure = f"did you mean {folder / inner}?" if inner else what_it_holds(folder)
    raise DatasetError(f"source: {folder} holds neither a {DESCRIPTION_NAME} nor a .csv or .tsv table of cases; {cure}")


def lists_cases(path: Path) -> bool:
    """Whether a JSON file, by any name, lists the cases of a data set, as MONAI's data lists do."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > _MOST_LIST_BYTES:
        return False
    try:
        return Description.read(path).lists_cases
    except DatasetError:
        return False


def _tables_in(folder: Path) -> list[str]:
    names = _names_in(folder)
    tables = [name for name in names if name.lower().endswith(TABLE_SUFFIXES) and os.path.isfile(folder / name)]
    return [TABLE_NAME] if TABLE_NAME in tables else tables


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DatasetError(f"source: {folder} cannot be read ({error.strerror}); check its permissions") from None
