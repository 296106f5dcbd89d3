"""Where a header of NRRD or MetaImage may have its voxels: in the file itself, or in one of its own folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from voxelocity.core.scan_formats import NRRD, voxels_next_to
from voxelocity.data.decode.gunzip import reading
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.plain import shortened

_NRRD_KEYS, _META_KEYS = ("data file", "datafile"), ("elementdatafile",)
_SAME_FILE = frozenset(("local", ""))
_HEADER_BYTES = 1 << 16
# Files that the system makes as they are read, such as the variables of this process.
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")


def voxel_files(path: Path) -> tuple[Path, ...]:
    """The file, and the one that holds its voxels where the header is detached, which may be missing.

    Raises:
        ScanError: as `locate_voxels`.
    """
    return locate_voxels(path)[1]


def locate_voxels(path: Path) -> tuple[Path, tuple[Path, ...]]:
    """The header that a reader must open, as it looks for voxels in the folder of that, and the files of the scan.

    A header may come from someone else, and would else make any file of this machine into voxels, which caches and
    reports then hold. A link in the folder is followed, as git-annex makes them, but not to files of the system. If the
    header itself is a link, its voxels may lie next to what it leads to.

    Raises:
        ScanError: the header cannot be read, does not end, or names several files, or one outside of its folder.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(_HEADER_BYTES)
    names, is_whole = _names(start, is_nrrd=path.suffix.lower() in NRRD.endings)
    if not is_whole and len(start) == _HEADER_BYTES:
        raise ScanError(
            f"decode: {path}: its header does not end within {_HEADER_BYTES // 1024} KiB; save the scan again, without "
            "comments"
        )
    detached = [name for name in names if name.lower() not in _SAME_FILE]
    if not detached:
        return path, (path,)
    if len(names) > 1:
        raise ScanError(
            f"decode: {path}: its header says more than once where the voxels are ({shortened(sorted(names))}); keep "
            "one line of these"
        )
    own, real = _inside(path, detached[0]), Path(os.path.realpath(path))
    if own.is_file() or not path.is_symlink():
        return path, (path, own)
    other = _inside(real, detached[0])
    return (real, (path, other)) if other.is_file() else (path, (path, own))


def cure_of_missing(path: Path, name: str) -> str:
    """What to do about a header that names a file of voxels which is not there: the end of an error."""
    # The name may be a path of another system.
    same = Path(path.parent, re.split(r"[\\/]", name)[-1])
    found = [file for file in (same, *voxels_next_to(path)) if file.name != name and file.is_file()]
    if not found:
        return "copy both files of the scan into one folder, under the names that they had"
    return f"{shortened(found[0].name)} lies next to the header: if it holds the voxels, write that name in the header"


def _inside(path: Path, name: str) -> Path:
    # As both readers of ITK decide, a name in lower case is that of a file.
    if name.startswith("LIST") or "%" in name:
        raise ScanError(
            f"decode: {path}: the voxels are in several files ({shortened(name)}); save the scan as one .nrrd or .mha "
            "file"
        )
    folder = os.path.abspath(path.parent)
    file = os.path.normpath(os.path.join(folder, name))
    if not file.startswith(os.path.join(folder, "")):
        raise ScanError(
            f"decode: {path}: its header names a file outside of its folder for the voxels ({shortened(name)}), "
            "which is not read because the header may come from someone else. If the file is yours, "
            f"{cure_of_missing(path, name)}, "
            "or save the scan as one .nrrd or .mha file"
        )
    try:
        Path(file).stat()
    except FileNotFoundError:
        # This is reported when the voxels are read.
        pass
    except (OSError, ValueError) as error:
        raise ScanError(
            f"decode: {path}: its header names {shortened(name)} as the file of its voxels, which cannot be looked up "
            f"({getattr(error, 'strerror', error)}); export the scan again"
        ) from None
    check_link(path, Path(file))
    return path.parent / name


def check_link(path: Path, voxels: Path) -> None:
    """Refuses a file of voxels that is a link to a file of the system.

    Args:
        path: of the header.
        voxels: the file.

    Raises:
        ScanError: it is one.
    """
    real = os.path.realpath(voxels)
    if real.startswith(_OF_THE_SYSTEM):
        raise ScanError(
            f"decode: {path}: its voxels are a link to {real}, which is a system file, not a scan; replace the link"
        )


def _names(start: bytes, *, is_nrrd: bool) -> tuple[set[str], bool]:
    """The files that lines of a header name, and whether all of the header was seen.

    Readers differ in where a line ends; every line that one of them may see counts.
    """
    keys = _NRRD_KEYS if is_nrrd else _META_KEYS
    names: set[str] = set()
    is_whole = False
    for line in start.split(b"\n"):
        if is_nrrd and line in (b"", b"\r"):
            return names, True
        for part in line.split(b"\r"):
            # "=" in MHA and ":" in NRRD; a file name after it may hold the other one, and bytes that are not UTF-8.
            key, *rest = re.split("[=:]", os.fsdecode(part), maxsplit=1)
            if rest and key.strip().lower() in keys:
                names.add(rest[0].strip())
                # MetaImage ends with this line, in this spelling alone.
                is_whole = is_whole or key.strip() == "ElementDataFile"
    return names, is_whole
