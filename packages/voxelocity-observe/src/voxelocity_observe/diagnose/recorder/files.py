"""Files that the program opens for reading, by kind, from Python's audit events.

Files that C libraries open by themselves raise no event. `SimpleITK.ReadImage` and `h5py.File` are replaced to see
them. Other such libraries (ITK's own binding, LMDB, Blosc2, safetensors, cuCIM) are only reported as loaded.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
from collections import deque
from functools import wraps
from typing import Any

from .hooks import forget, listen
from .lines import is_installed, standard_folders
from .process import absolute
from .steps import Moment
from .writer import Writer

_CODE = (".py", ".pyc", ".pyi", ".so", ".pth", ".pyd", ".egg-link", ".toml", ".cfg", ".ipynb")
_COMPILED = "torchinductor_"
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/", "/usr/lib/")
# Suffixes that are reported with the one before them.
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_UNSEEN = ("itk", "lmdb", "blosc2", "safetensors", "cucim", "openslide", "indexed_gzip")
_MOST_FILES = 100_000
_NUM_LARGEST = 64
# Files that one item may consist of: opened first for their headers and later for their voxels.
_NUM_LATEST = 8


class Files:
    """Counts files that are opened for reading while the program counts, from `start` to `stop`.

    Cost: 4 microseconds per file that counts, 0.15 per other audit event (measured), and one size query per new file.

    Args:
        moment: where the program is.
        ignore: folders whose files do not count: the recording's own.
    """

    def __init__(self, moment: Moment, *, ignore: tuple[str, ...] = ()) -> None:
        self._moment = moment
        self._ignored = (*standard_folders(), *(os.path.join(os.path.abspath(folder), "") for folder in ignore))
        self._kinds: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._num_opens = 0
        self._read_bytes = 0
        self._unpacked_bytes = 0
        self._num_uses = 0
        self._latest: deque[str] = deque(maxlen=_NUM_LATEST)
        self._is_inside = threading.local()
        self._replaced: dict[str, tuple[Any, str, Any]] = {}

    def start(self) -> None:
        """Begins to count. Further calls add libraries that were imported since."""
        listen(self._heard)
        for module, owner, name, index in (("SimpleITK", "", "ReadImage", 0), ("h5py", "File", "__init__", 1)):
            found = sys.modules.get(module)
            target = getattr(found, owner, None) if owner else found
            if target is not None and name in vars(target) and module not in self._replaced:
                original = vars(target)[name]
                self._replaced[module] = target, name, original
                setattr(target, name, self._counted(original, index))

    def stop(self) -> None:
        """Ends counting. What was counted stays, for `report`."""
        forget(self._heard)
        # Even where the guard has replaced it since: it does so again when the program is ended.
        for target, name, original in self._replaced.values():
            setattr(target, name, original)
        self._replaced.clear()

    def report(self, writer: Writer) -> None:
        """Writes one event `files`."""
        largest = heapq.nlargest(_NUM_LARGEST, list(self._sizes.items()), key=lambda item: item[1])
        writer.write(
            "files",
            kinds=dict(self._kinds),
            num_opens=self._num_opens,
            num_files=len(self._sizes),
            read_bytes=self._read_bytes,
            largest=[path for path, _ in largest],
            unseen=[name for name in _UNSEEN if name in sys.modules],
            unpacked_bytes=self._unpacked_bytes,
            num_uses=self._num_uses,
        )

    def _counted(self, original: Any, index: int) -> Any:
        """A function that opens the file that is its argument number `index`; a class's has a mode after it."""

        @wraps(original)
        def opening(*args: Any, **named: Any) -> Any:
            given = args[index] if len(args) > index else named.get("fileName", named.get("name"))
            mode = args[index + 1] if index and len(args) > index + 1 else named.get("mode", "r")
            if index == 0 or mode == "r":
                for path in given if isinstance(given, (list, tuple)) else (given,):
                    self.count_opening(path)
            return original(*args, **named)

        return opening

    def count_opening(self, given: Any) -> None:
        """Counts a file that is about to be opened for reading, if it is data."""
        if not isinstance(given, (str, bytes, os.PathLike)) or not self._moment.is_counting():
            return
        if getattr(self._is_inside, "yes", False):
            return
        self._is_inside.yes = True
        try:
            self._count(os.fsdecode(given))
        finally:
            self._is_inside.yes = False

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and _is_reading(args[1], args[2]):
            self.count_opening(args[0])

    def _count(self, given: str) -> None:
        path = absolute(given)
        if path.endswith(_CODE) or path.startswith(self._ignored) or is_installed(path) or _COMPILED in path:
            return
        if path.startswith(_SYSTEM) and not path.startswith("/dev/shm/"):
            return
        size = self._sizes.get(path)
        if size is None:
            size = _size(path)
            if size is None:
                return
            if len(self._sizes) < _MOST_FILES:
                self._sizes[path] = size
                self._unpacked_bytes += _unpacked(path, size)
        if path not in self._latest:
            self._num_uses += 1
            self._latest.append(path)
        kind = _kind(path)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        self._num_opens += 1
        self._read_bytes += size


def _is_reading(mode: str | None, flags: int) -> bool:
    """By the mode of `open`, or the flags of `os.open`, which has no mode."""
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return flags & os.O_ACCMODE == os.O_RDONLY


def _size(path: str) -> int | None:
    """Bytes of a regular file; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if (found.st_mode & 0o170000) == 0o100000 else None


def _unpacked(path: str, size: int) -> int:
    """Bytes that a file holds when it is unpacked: the last four bytes of a gzip file say so, modulo 4 GiB."""
    if not path.endswith(".gz") or size < 18:
        return size
    try:
        with open(path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            return max(size, int.from_bytes(file.read(4), "little"))
    except OSError:
        return size


def _kind(path: str) -> str:
    """The suffix in lower case, with the one before it if the file is compressed (".nii.gz")."""
    stem, suffix = os.path.splitext(os.path.basename(path).lower())
    if suffix in _PACKED:
        before = os.path.splitext(stem)[1]
        return (before if 1 < len(before) <= 6 else "") + suffix
    return suffix if len(suffix) <= 12 else ""
