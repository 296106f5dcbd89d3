"""A folder of a cache that several processes share: who may read it, who makes which entry, and who uses which."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
import weakref
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from voxelocity_observe.core.errors import CacheFullError, OutputError
from voxelocity_observe.core.warn_once import Warn, WarnOnce

LOCKS_NAME = "locks"
USES_NAME = ".uses"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_GROUP_WRITES = 0o020
_MAX_WAIT_S = 120.0
"""Several times what a large case takes to prepare. After that, the work is done twice rather than never."""
_MAX_AGE_S = 86400.0
"""Age at which a file counts as abandoned on a file system without locks, which cannot show that its writer lives."""


def is_shared(folder: Path) -> bool:
    """Whether the folder's group may write into it, which is how users share a cache."""
    try:
        return bool(folder.stat().st_mode & _GROUP_WRITES)
    except OSError:
        return False


def file_mode(folder: Path) -> int:
    """The permissions of a new file in this folder, before the umask: prepared volumes are patient data.

    Access is for the user alone, or for the group too if the group may write into the folder; never for everybody.
    """
    return 0o660 if is_shared(folder) else 0o600


def folder_error(tier: str, folder: Path, error: OSError) -> OutputError | CacheFullError:
    """The error to raise: a full disk must not end a run, a folder that the user may not write to should."""
    if error.errno in NO_SPACE:
        return CacheFullError(
            f"{tier}: no space in {folder} ({error.strerror}); free some space or set data.cache.folder to another disk"
        )
    return OutputError(
        f"{tier}: folder {folder} cannot be used ({error.strerror}); set data.cache.folder to one you may write to"
    )


def is_abandoned(descriptor: int) -> bool:
    """Whether no living process holds the lock of this open file; if not, the caller holds it until it closes it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(descriptor).st_mtime > _MAX_AGE_S
    return True


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

    They save double work and guard nothing else: reading and writing are safe without them.

    Args:
        folder: exists.
        warn: called once if waiting for the holder of a lock timed out.
    """

    _is_passing = True

    def __init__(self, folder: Path, *, warn: Warn | None = None) -> None:
        self._folder = folder
        self._warn = WarnOnce(warn)

    def hold(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of this key.

        Proceeds without it if it is not available (a full disk, a folder of another user, a file system without
        locks), or if another process holds it for longer than preparing a case takes, as a stopped one does.
        """
        return _hold(self._path(key), self._warn, is_passing=self._is_passing)

    def _path(self, key: str) -> Path:
        return self._folder / f".{key}.lock"


class KeyLocks(PassingLocks):
    """Locks named by key in the folder `locks` of a cache.

    Args:
        folder: of the cache, made for this user alone if it is missing; `locks` is made in it.
        num_files: most files there may be; keys that share one wait for each other, and the files stay. 0 makes one
            for each key, removed when nothing holds it.
        warn: called once if waiting for the holder of a lock timed out.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, *, num_files: int = 0, warn: Warn | None = None) -> None:
        super().__init__(folder / LOCKS_NAME, warn=warn)
        self._num_files = num_files
        self._is_passing = num_files == 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o770 if is_shared(folder) else 0o700, exist_ok=True)

    def _path(self, key: str) -> Path:
        name = key if self._is_passing else f"shared-{zlib.crc32(key.encode()) % self._num_files}"
        return self._folder / f"{name}.lock"


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

    def in_use(self) -> set[str]:
        """The keys that this process and others use; lists of processes that ended are removed."""
        with self._lock:
            own = self._path if self._pid == os.getpid() else None
            found: set[str] = set() if own is None else set(self._keys)
        for path in self._lists():
            if path != own:
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


@contextlib.contextmanager
def _hold(path: Path, warn: WarnOnce, *, is_passing: bool) -> Iterator[None]:
    # A file's mere existence is not the lock: it outlives a killed process and would block the others forever.
    file_lock = FileLock(path, mode=file_mode(path.parent), fallback_to_soft=False)
    try:
        file_lock.acquire(timeout=_MAX_WAIT_S)
    except Timeout:
        warn(
            "wait",
            f"cache: another process, possibly suspended, has held {path} for more than {_MAX_WAIT_S:.0f} s; this "
            "one stops waiting and also prepares the case",
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


def _keys_in(path: Path) -> set[str]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if is_abandoned(descriptor):
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
