"""Who makes which entry: one lock for each key, among all threads and processes on a folder, or in one process."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from voxelocity.data.cache.folder import file_mode, is_shared, make_folder
from voxelocity.data.cache.tell import TellOnce, Warn

LOCKS_NAME = "locks"
_MAX_WAIT_S = 120.0
"""Some times what a large case takes to prepare. Beyond it, the work is done twice rather than never."""


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
        warn: told, once, that the holder of a lock was not waited for any longer.
    """

    def __init__(self, folder: Path, *, warn: Warn | None = None) -> None:
        self._folder = folder
        self._tell = TellOnce(warn)

    def hold(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of this key, or does without, as `KeyLocks.hold`."""
        return _held(self._folder / f".{key}.lock", self._tell, is_passing=True)


class KeyLocks:
    """Locks named by key in the folder `locks` of a cache.

    They save double work and guard nothing else: reading and writing are safe without them.

    Args:
        folder: of the cache; `locks` is made in it.
        num_files: how many files there are at the most, shared by keys that then wait for each other, and kept; 0 makes
            one for each key, which goes when nobody holds it.
        warn: told, once, that the holder of a lock was not waited for any longer.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, *, num_files: int = 0, warn: Warn | None = None) -> None:
        self._folder = folder / LOCKS_NAME
        self._num_files = num_files
        self._tell = TellOnce(warn)
        make_folder(folder)
        self._folder.mkdir(mode=0o770 if is_shared(folder) else 0o700, exist_ok=True)

    def hold(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of this key.

        It is done without where it is not available (a full disk, a folder of another user, a file system without
        locks), and where another process holds it for longer than preparing a case takes, as a stopped one does.
        """
        return _held(self._path(key), self._tell, is_passing=self._num_files == 0)

    def forget(self, key: str) -> None:
        """Removes the file of this lock, if there is one of this key alone, as older versions left them."""
        if self._num_files == 0:
            with contextlib.suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = f"shared-{zlib.crc32(key.encode()) % self._num_files}" if self._num_files else key
        return self._folder / f"{name}.lock"


@contextlib.contextmanager
def _held(path: Path, tell: TellOnce, *, is_passing: bool) -> Iterator[None]:
    # Not by the mere existence of a file, which outlives a killed process and would hold up the others for ever.
    file_lock = FileLock(path, mode=file_mode(path.parent), fallback_to_soft=False)
    try:
        file_lock.acquire(timeout=_MAX_WAIT_S)
    except Timeout:
        tell(
            "wait",
            f"cache: another process has held {path} for more than {_MAX_WAIT_S:.0f} s, as a suspended one does; it is "
            "not waited for any longer, and the case is prepared here too",
        )
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        # Before it is released: whoever waits gets the lock of a file without a name and sees that the work is done;
        # whoever comes later makes a new file.
        if is_passing and file_lock.is_locked:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        file_lock.release()
