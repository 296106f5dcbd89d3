"""A folder in main memory that exists while a process uses it. Each user holds a lock that ends with its process.

Knows nothing about the folder's contents. All names that begin with a dot are its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from voxelocity.data.cache.locks import USES_NAME
from voxelocity_observe.core.host import file_system_of
from voxelocity_observe.core.memory_folders import USERS_NAME, held_bytes, memory_folder_in, memory_places

_LOCK_SUFFIX = ".lock"
_MOUNTS = Path("/proc/self/mounts")


class SharedFolder:
    """A folder of one user, held open for all processes of that user.

    The first process to enter finds it empty: files that killed processes left behind are removed. The last one to
    leave removes it: at `leave`, when this object is collected, or when the interpreter exits. A forked process counts
    as a separate user of the folder after its first call.

    Args:
        path: made if it is missing, with access for this user alone.

    Raises:
        OSError: it cannot be made or written.
        PermissionError: it belongs to another user, or others may write in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._enter()

    def stay(self) -> None:
        """Enters the folder again if this process was forked from one of its users or the folder was removed.

        Systems with RemoveIPC in logind.conf empty /dev/shm when a user logs out, even if processes still run.
        """
        try:
            inode = os.stat(self.path / USERS_NAME).st_ino
        except FileNotFoundError:
            inode = 0
        if (os.getpid(), inode) != (self._pid, self._inode):
            self._enter()

    def leave(self) -> None:
        """Ends the use; the last one removes the folder and all files in it."""
        self._leave()

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[int]:
        """Holds the lock of this name among all threads and processes; yields the descriptor of the lock file.

        Raises:
            OSError: the file of the lock cannot be made.
        """
        descriptor = self._open_locked(f".{name}{_LOCK_SUFFIX}")
        try:
            yield descriptor
        finally:
            # Explicit, as closing alone would leave the lock with processes that were forked meanwhile.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _enter(self) -> None:
        while True:
            try:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_owner(self.path)
                descriptor = os.open(self.path / USERS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # its last user has just removed it
            except FileExistsError:
                # pathlib checks whether it is a folder only after mkdir reported that it exists.
                if self.path.exists():
                    raise
                continue
            if self._join(descriptor):
                break
            os.close(descriptor)
        self._pid, self._inode = os.getpid(), os.fstat(descriptor).st_ino
        self._leave = weakref.finalize(self, _leave, descriptor, self.path, self._pid)

    def _join(self, descriptor: int) -> bool:
        """Takes a user's lock; False where the folder was removed meanwhile."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # No other process is here, so any files were left behind.
            if os.fstat(descriptor).st_nlink > 0:
                _empty(self.path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return os.fstat(descriptor).st_nlink > 0

    def _open_locked(self, name: str) -> int:
        while True:
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink > 0:
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def memory_folder(
    *, min_free_bytes: int, candidates: Iterable[Path] | None = None, mounts: Path = _MOUNTS
) -> tuple[Path | None, str]:
    """A place for files in main memory with room for this many bytes, or None, and why the others were rejected.

    Args:
        min_free_bytes: what must be free there, including what this user's shared folder already holds.
        candidates: checked in order; by default where Linux has such file systems.
        mounts: the table of mounted file systems.
    """
    reasons = []
    for place in memory_places() if candidates is None else candidates:
        refusal = _refusal(place, mounts)
        if refusal:
            reasons.append(refusal)
        elif (free_bytes := _free_bytes(place)) < min_free_bytes:
            reasons.append(f"{place} has {free_bytes / 1e6:.0f} MB of the {min_free_bytes / 1e6:.0f} MB budget free")
        else:
            return place, "; ".join(reasons)
    return None, "; ".join(reasons)


def shared_free_bytes(*, candidates: Iterable[Path] | None = None, mounts: Path = _MOUNTS) -> int:
    """The largest budget for which `memory_folder` finds a place now; 0 where it finds none."""
    places = memory_places() if candidates is None else candidates
    return max((_free_bytes(place) for place in places if not _refusal(place, mounts)), default=0)


def free_bytes_in(folder: Path | int) -> int:
    """Bytes that can still be written there, or to the file system of this descriptor."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def total_bytes_of(folder: Path) -> int:
    """Bytes that the whole file system of this folder could ever hold."""
    status = os.statvfs(folder)
    return status.f_blocks * status.f_frsize


def remove_left_behind(folder: Path) -> bool:
    """Removes a folder that no process uses, with all it holds; False if one still uses it.

    Raises:
        OSError: it is gone, or belongs to another user.
    """
    _check_owner(folder)
    _leave(os.open(folder / USERS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), folder, os.getpid())
    return not folder.exists()


def _refusal(place: Path, mounts: Path) -> str:
    """Why no files can be kept in memory there; "" where they can."""
    if not place.is_dir():
        return f"{place} is missing"
    if file_system_of(place, mounts=mounts) != "tmpfs":
        return f"{place} is not in memory"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def _free_bytes(place: Path) -> int:
    return held_bytes(memory_folder_in(place)) + free_bytes_in(place)


def _check_owner(folder: Path) -> None:
    # Where everybody may make folders, another user could have made this one first, or a link of this name.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to another user, or others may write in it")


def _empty(folder: Path) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name not in (USERS_NAME, USES_NAME)]
    shutil.rmtree(folder / USES_NAME, ignore_errors=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _leave(descriptor: int, folder: Path, pid: int) -> None:
    # In a forked process the descriptor is the parent's: the child must neither upgrade the lock nor release it.
    try:
        if os.getpid() == pid:
            # Linux drops the shared lock when the exclusive one is refused, so of two that leave at once, one is last.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink > 0:
                _empty(folder)
                (folder / USERS_NAME).unlink()
                folder.rmdir()
    except OSError:
        pass  # another process uses it, or entered while it was being removed
    finally:
        os.close(descriptor)
