"""Who makes which entry: one lock for each key, among all threads and processes on a folder, or in one process."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

LOCKS_NAME = "locks"


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
    """Locks named by key in a folder that shows no file of theirs when nobody holds one.

    They save double work and guard nothing else, as those of `KeyLocks`.

    Args:
        folder: exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Holds the lock of this key, or does without where it cannot be had."""
        path = self._folder / f".{key}.lock"
        file_lock = FileLock(path, fallback_to_soft=False)
        with contextlib.suppress(OSError, NotImplementedError):
            file_lock.acquire()
        try:
            yield
        finally:
            # Before it is released: whoever waits gets the lock of a file without a name and sees that the work is
            # done; whoever comes later makes a new file.
            if file_lock.is_locked:
                path.unlink(missing_ok=True)
            file_lock.release()


class KeyLocks:
    """Locks named by key in the folder `locks` of a cache.

    They save double work and guard nothing else: reading and writing are safe without them.

    Args:
        folder: of the cache; `locks` is made in it.
        num_files: how many files there are at the most, shared by keys that then wait for each other; 0 makes one for
            each key.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, *, num_files: int = 0) -> None:
        self._folder = folder / LOCKS_NAME
        self._num_files = num_files
        self._folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Holds the lock of this key.

        Where it cannot be had (a full disk, a folder of somebody else's, a file system without locks) it is done
        without.
        """
        # Not by the mere existence of a file, which outlives a killed process and would hold up the others for ever.
        file_lock = FileLock(self._path(key), fallback_to_soft=False)
        with contextlib.suppress(OSError, NotImplementedError):
            file_lock.acquire()
        try:
            yield
        finally:
            file_lock.release()

    def forget(self, key: str) -> None:
        """Removes the file of this lock, if there is one of this key alone."""
        if self._num_files == 0:
            with contextlib.suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = f"shared-{zlib.crc32(key.encode()) % self._num_files}" if self._num_files else key
        return self._folder / f"{name}.lock"
