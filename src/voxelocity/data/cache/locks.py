"""Locks that decide who makes which entry: one for each key, among all users of a folder or in one process."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from voxelocity.core.warn_once import Warn, WarnOnce
from voxelocity.data.cache.folder import file_mode, is_shared, make_folder

LOCKS_NAME = "locks"
_MAX_WAIT_S = 120.0
"""Several times what a large case takes to prepare. After that, the work is done twice rather than never."""


class ThreadLocks:
    """Locks named by key, among the threads of this process."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Holds the lock of this key."""
        with self._guard:
            lock = self._locks[key]
        with lock:
            yield


class PassingLocks:
    """Locks named by key in a folder, whose files exist only while a lock is held.

    Like `KeyLocks`, they save double work and guard nothing else.

    Args:
        folder: exists.
        warn: called once if waiting for the holder of a lock timed out.
    """

    def __init__(self, folder: Path, *, warn: Warn | None = None) -> None:
        self._folder = folder
        self._warn = WarnOnce(warn)

    def hold(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of this key, or proceeds without it, as `KeyLocks.hold`."""
        return _held(self._folder / f".{key}.lock", self._warn, is_passing=True)


class KeyLocks:
    """Locks named by key in the folder `locks` of a cache.

    They save double work and guard nothing else: reading and writing are safe without them.

    Args:
        folder: of the cache; `locks` is made in it.
        num_files: most files there may be; keys that share one wait for each other, and the files stay. 0 makes one
            for each key, removed when nothing holds it.
        warn: called once if waiting for the holder of a lock timed out.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, *, num_files: int = 0, warn: Warn | None = None) -> None:
        self._folder = folder / LOCKS_NAME
        self._num_files = num_files
        self._warn = WarnOnce(warn)
        make_folder(folder)
        self._folder.mkdir(mode=0o770 if is_shared(folder) else 0o700, exist_ok=True)

    def hold(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of this key.

        Proceeds without it if it is not available (a full disk, a folder of another user, a file system without
        locks), or if another process holds it for longer than preparing a case takes, as a stopped one does.
        """
        return _held(self._path(key), self._warn, is_passing=self._num_files == 0)

    def forget(self, key: str) -> None:
        """Removes the lock file of this key, if it has its own; older versions left them behind."""
        if self._num_files == 0:
            with contextlib.suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = f"shared-{zlib.crc32(key.encode()) % self._num_files}" if self._num_files else key
        return self._folder / f"{name}.lock"


@contextlib.contextmanager
def _held(path: Path, warn: WarnOnce, *, is_passing: bool) -> Iterator[None]:
    # A file's mere existence is not the lock: it outlives a killed process and would block the others forever.
    file_lock = FileLock(path, mode=file_mode(path.parent), fallback_to_soft=False)
    try:
        file_lock.acquire(timeout=_MAX_WAIT_S)
    except Timeout:
        warn(
            "wait",
            f"cache: another process, possibly suspended, has held {path} for more than {_MAX_WAIT_S:.0f} s; this one "
            "stops waiting, and the case is prepared here too",
        )
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        # Before the release: a process that waits gets the lock of an unlinked file and sees that the work is done;
        # one that comes later makes a new file.
        if is_passing and file_lock.is_locked:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        file_lock.release()
