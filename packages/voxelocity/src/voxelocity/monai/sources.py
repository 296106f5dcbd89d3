"""What files, folders, modules and installed packages are: facts that two processes agree on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from voxelocity.core.scan_formats import format_named, headers_next_to
from voxelocity.data.decode import source_files
from voxelocity_observe.core.errors import ScanError

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_RESULT_MAKERS = ("monai", "torch", "numpy", "scipy", "nibabel")
"""Packages whose version may change voxels, whatever the chain names."""
_DICOM_NAME = re.compile(r"\.(dcm|dicom|ima)$", re.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def version_of(module_name: str) -> str | None:
    """Package and version of an installed module, or None for code that its author may edit, which is then read.

    A package installed in editable form is such code.
    """
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    if not _is_installed(top):
        return None
    try:
        version: str | None = importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        # The package and its module have different names, as with SimpleITK or PIL.
        version = getattr(sys.modules.get(top), "__version__", None) or _version_by_files(top)
    return None if version is None else f"{top} {version}"


def _version_by_files(top: str) -> str | None:
    """The version of the package that installed a module."""
    packages = importlib.metadata.packages_distributions().get(top, ())
    return importlib.metadata.version(packages[0]) if packages else None


def versions_below_all() -> dict[str, str]:
    """Versions of Python and of the packages that take part in every chain."""
    found = {name: importlib.metadata.version(name) for name in _RESULT_MAKERS}
    return {"python": f"{sys.implementation.cache_tag}", **found}


def _is_installed(top: str) -> bool:
    module = sys.modules.get(top)
    if module is not None:
        file, folders = getattr(module, "__file__", None), getattr(module, "__path__", [])
    else:
        spec = importlib.util.find_spec(top) if top else None
        file, folders = (None, []) if spec is None else (spec.origin, spec.submodule_search_locations or [])
    places = [file] if file else list(folders)
    return bool(places) and all(any(f"/{folder}/" in str(place) for folder in _PACKAGE_FOLDERS) for place in places)


def module_files(module: ModuleType) -> list[tuple[str, str]] | None:
    """Name and digest of the source of the module and of every non-installed module that its names lead to, sorted.

    None if one of them has no source file.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        next_one = waiting.pop()
        if next_one.__name__ in found:
            continue
        file = getattr(next_one, "__file__", None)
        if file is None or not Path(file).is_file():
            return None
        found[next_one.__name__] = hashlib.blake2b(Path(file).read_bytes(), digest_size=20).hexdigest()
        waiting.extend(_own_modules(next_one))
    return sorted(found.items())


def _own_modules(module: ModuleType) -> list[ModuleType]:
    names = {
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in vars(module).values()
        if isinstance(value, (ModuleType, type)) or callable(value)
    }
    own = sorted(name for name in names if isinstance(name, str) and version_of(name) is None)
    return [sys.modules[name] for name in own if name in sys.modules and name != "builtins"]


def path_facts(path: str, *, folders: FolderFacts | None) -> list[str]:
    """Facts of this file, or of the files in this folder if `folders` is given; nothing where there is neither.

    A file's facts are its real path, size, times of content and of inode, and inode: a replacement of the same size
    and time has other facts. A detached header brings those of its voxels, and the voxels of a pair those of their
    header. Only one level of a folder counts, because a word in an item may name a folder far up.
    """
    if "\0" in path or len(path) > 4096:
        return []
    if os.path.isfile(path):
        return [_file_facts(os.path.realpath(file)) for file in (path, *_companions(path))]
    if folders is not None and path and os.path.isdir(path):
        return folders.of(path)
    return []


def _companions(path: str) -> list[str]:
    """The files that belong to this one: of a detached header its voxels, of the voxels of a pair their header."""
    named = format_named(path)
    if named is None or named.is_one_file:
        return [os.fspath(header) for header in headers_next_to(Path(path))]
    try:
        return [os.fspath(file) for file in source_files(Path(path))[1:]]
    except ScanError:
        # Other readers may find voxels where ours do not: any file next to the header may be one of them.
        with os.scandir(os.path.dirname(path) or ".") as entries:
            return sorted(entry.path for entry in entries if entry.is_file())


class FolderFacts:
    """Facts of the files in folders. A folder is listed again after a file in it was added, removed or replaced.

    Only the next data set or process notices a file that was overwritten in place. An access to an item costs one look
    at its folder, not one at each slice of a series. A copy begins empty.
    """

    # MONAI seeds whatever it finds in the attributes of a data set, and in theirs; it skips what has none.
    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], list[str]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderFacts, ()

    def of(self, folder: str) -> list[str]:
        """Facts of the files that count: all but hidden ones; in a folder with DICOM, only those that may be DICOM."""
        try:
            status = os.stat(folder)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            known = self._known.get(folder)
            if known is None or known[0] != stamp:
                known = self._known[folder] = (stamp, _facts_in(folder))
        except OSError as error:
            # A word in an item may name a folder that this user may not list.
            return [f"{folder}:{error.errno}"]
        return known[1]


def _facts_in(folder: str) -> list[str]:
    parent = os.path.realpath(folder)
    with os.scandir(parent) as found:
        entries = [entry for entry in found if not entry.name.startswith(".")]
    if any(_DICOM_NAME.search(entry.name) for entry in entries):
        # Readers of series skip the rest or refuse it, so what is written next to the slices changes nothing.
        entries = [entry for entry in entries if _may_be_dicom(entry)]
    return sorted(_entry_facts(entry) for entry in entries)


def _may_be_dicom(entry: os.DirEntry[str]) -> bool:
    suffix = os.path.splitext(entry.name)[1]
    # Slices named by their UID end in a number.
    is_named_so = suffix == "" or suffix[1:].isdigit() or _DICOM_NAME.search(entry.name) is not None
    return is_named_so and entry.is_file()


def _entry_facts(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name}:{_file_facts(os.path.realpath(entry.path))}"
    return _file_facts(entry.path) if entry.is_file() else f"{entry.path}/"


def _file_facts(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        # A broken link, or a file that disappears meanwhile, is a fact too.
        return f"{path}:{error.errno}"
    return f"{path}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
