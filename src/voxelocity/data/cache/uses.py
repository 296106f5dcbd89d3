"""Which entries of a folder living processes use, so that none of these is removed to make room for another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
import weakref
from pathlib import Path

from voxelocity.data.cache.folder import is_shared

USES_NAME = ".uses"
_MAX_AGE_S = 86400.0
"""Age at which a list without a new use counts as left behind on a file system without locks."""


class Uses:
    """The entries that this process uses, in a file whose lock it holds, and those that others use.

    The kernel releases the lock with the process, however that ends. A failure here only removes an entry, which is
    then prepared again. Safe to use from several threads; a forked process begins its own list.

    Args:
        folder: exists; the lists are in a separate folder in it, which holds few files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / USES_NAME
        self._listed: tuple[int, list[Path]] = 0, []
        self._lock = threading.Lock()
        self._pid = 0
        self._path = Path()
        self._descriptor = -1
        self._keys: set[str] = set()

    def note(self, key: str) -> bool:
        """Records that this process uses the entry; returns whether that is new."""
        with self._lock:
            if self._pid == os.getpid() and key in self._keys:
                return False
            self._open()
            self._keys.add(key)
            self._write(f"+{key}\n")
            return True

    def withdraw(self, key: str) -> None:
        """Records that this process no longer uses the entry."""
        with self._lock:
            if self._pid == os.getpid() and key in self._keys:
                self._keys.remove(key)
                self._write(f"-{key}\n")

    def own(self) -> set[str]:
        """The keys that this process uses."""
        with self._lock:
            return set(self._keys) if self._pid == os.getpid() else set()

    def of_others(self) -> set[str]:
        """The keys that others use; lists of processes that ended are removed."""
        found: set[str] = set()
        for path in self._lists():
            if path != self._path or self._pid != os.getpid():
                with contextlib.suppress(OSError):
                    found |= _keys_in(path)
        return found

    def _lists(self) -> list[Path]:
        """The lists of all processes; scanned again only after one was added or removed."""
        with contextlib.suppress(OSError):
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns != self._listed[0]:
                self._listed = changed_ns, list(self._folder.iterdir())
        return self._listed[1]

    def _open(self) -> None:
        if self._pid == os.getpid() and self._path.exists():
            return
        self._keys, self._pid = (self._keys if self._pid == os.getpid() else set()), os.getpid()
        self._path = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o770 if is_shared(self._folder.parent) else 0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o660)
            # Before the lock, as the file must go even where there are no locks.
            weakref.finalize(self, _end, self._descriptor, self._path, self._pid)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            for key in self._keys:
                self._write(f"+{key}\n")

    def _write(self, line: str) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, line.encode())


def _keys_in(path: Path) -> set[str]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_left = True
        except BlockingIOError:
            is_left = False
        except OSError:
            is_left = time.time() - os.fstat(descriptor).st_mtime > _MAX_AGE_S
        if is_left:
            path.unlink(missing_ok=True)
            return set()
        keys: set[str] = set()
        for line in path.read_text().splitlines():
            (keys.add if line[:1] == "+" else keys.discard)(line[1:])
        return keys
    finally:
        os.close(descriptor)


def _end(descriptor: int, path: Path, pid: int) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)
    os.close(descriptor)
