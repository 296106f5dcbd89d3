"""Where a header of NRRD or MetaImage may have its voxels: in the file itself, or in one of its own folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from voxelocity.core.errors import ScanError

_KEYS = {".nrrd": ("data file", "datafile"), ".nhdr": ("data file", "datafile")}
_META_KEYS = ("elementdatafile",)
_SAME_FILE = frozenset(("local", ""))
_HEADER_BYTES = 1 << 16
# Files that the system makes as they are read, such as the variables of this process.
_NO_FOLDERS = ("/proc", "/sys", "/dev")


def check_voxel_file(path: Path) -> None:
    """Returns if the voxels of a scan are in its own file, or in one of its folder or below.

    A header may come from someone else, and would else make any file of this machine into voxels, which caches and
    reports then hold. A link in the folder is followed, as git-annex makes them, but not to files of the system.

    Raises:
        ScanError: they are elsewhere, the header names several files, or it does not end.
        OSError: the header cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER_BYTES)
    names, is_whole = _names(start, path.suffix.lower())
    if not is_whole and len(start) == _HEADER_BYTES:
        raise ScanError(
            f"decode: {path}: its header does not end within {_HEADER_BYTES // 1024} KiB; save the scan again, without "
            "comments"
        )
    outside = {name for name in names if name.lower() not in _SAME_FILE}
    if len(outside) > 1 or (outside and len(names) > 1):
        raise ScanError(
            f"decode: {path}: its header says more than once where the voxels are ({_shown(*sorted(names))}); keep one "
            "line of these"
        )
    for name in outside:
        if name.startswith("LIST") or "%" in name:
            raise ScanError(
                f"decode: {path}: the voxels are in several files ({_shown(name)}); save the scan as one .nrrd or .mha "
                "file"
            )
        _check_inside(path, name)


def _check_inside(path: Path, name: str) -> None:
    folder = os.path.abspath(path.parent)
    file = os.path.normpath(os.path.join(folder, name))
    if not file.startswith(os.path.join(folder, "")):
        raise ScanError(
            f"decode: {path}: its header names a file outside of its folder for the voxels ({_shown(name)}), which is "
            "not read: the header may come from someone else. If the file is yours, move it next to the header and "
            "correct the name there, or save the scan as one .nrrd or .mha file"
        )
    real = os.path.realpath(file)
    if real.startswith(tuple(f"{place}/" for place in _NO_FOLDERS)):
        raise ScanError(
            f"decode: {path}: its voxels are a link to {real}, which is a file of the system, not of a scan; replace "
            "the link"
        )


def _names(start: bytes, ending: str) -> tuple[set[str], bool]:
    """The files that lines of a header name, and whether all of the header was seen.

    Readers differ in where a line ends; every line that one of them may see counts.
    """
    keys, is_nrrd = _KEYS.get(ending, _META_KEYS), ending in _KEYS
    names: set[str] = set()
    is_whole = False
    for line in start.split(b"\n"):
        if is_nrrd and line in (b"", b"\r"):
            return names, True
        for part in line.split(b"\r"):
            # "=" in MHA and ":" in NRRD; a file name after it may hold the other one.
            key, *rest = re.split("[=:]", os.fsdecode(part), maxsplit=1)
            if rest and key.strip().lower() in keys:
                names.add(rest[0].strip())
                # MetaImage ends with this line, in this spelling alone.
                is_whole = is_whole or key.strip() == "ElementDataFile"
    return names, is_whole


def _shown(*names: str) -> str:
    return ", ".join(repr(name if len(name) <= 80 else f"{name[:80]}...") for name in names)
