"""The disk tier: one immutable, memory-mapped file per prepared volume, shared by processes and kept across runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock

from voxelocity.core.errors import CacheError, CacheFullError, OutputError
from voxelocity.core.volume import Volume
from voxelocity.data.cache.entry import DamagedEntryError, Entry, pack, unpack
from voxelocity.data.cache.mapping import map_file

_SUFFIX = ".safetensors"
_TEMP_SUFFIX = ".tmp"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_WRITE_BYTES = 16 * 2**20
_MAX_TEMP_AGE_S = 86400.0
"""When a temporary file counts as abandoned on a file system without locks, where its writer cannot be asked."""


class DiskTier:
    """Volumes as files in a folder. Safe to use from several threads and processes at once.

    An entry appears whole or not at all: it is written beside its place, flushed to the disk, then renamed. Arrays are
    stored in C order, whatever their order in memory, and come back as read-only views of the mapped file: nothing is
    read before it is used, and no file stays open. Sequences in a trace come back as lists.

    Args:
        folder: made where it is missing. What writers that died left behind in it is removed.

    Raises:
        OutputError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder).absolute()
        self._locks = self._folder / "locks"
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
        except OSError as error:
            raise OutputError(
                f"cache.disk: folder {self._folder} cannot be used ({error.strerror}); set data.cache.folder to one "
                "you may write to"
            ) from error

    def get(self, key: str) -> Volume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped).

        Finds cut-off and mangled files by their length and header; only `verify` reads every voxel.

        Raises:
            CacheError: the file is there and cannot be opened.
        """
        try:
            entry = self._read(key)
        except DamagedEntryError:
            # Where we may only read, the damaged file stays; it is never served all the same.
            with contextlib.suppress(OSError):
                self.drop(key)
            return None
        return None if entry is None else entry.volume

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume; it survives a loss of power once this returns.

        An array that is not in C order is copied for the time of the call.

        Raises:
            CacheFullError: there is no space, or no quota, for it; nothing is left behind.
            CacheError: it cannot be written for another reason; nothing is left behind.
        """
        parts = pack(key, volume)
        try:
            self._write(key, parts)
        except OSError as error:
            raise self._error_of(error, volume.case_id, sum(len(part) for part in parts)) from error

    def drop(self, key: str) -> None:
        """Removes this entry if there is one. Volumes already handed out stay valid."""
        self._path(key).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}"))

    def bytes_used(self) -> int:
        """Bytes of all entry files."""
        total = 0
        for key in self.keys():
            with contextlib.suppress(FileNotFoundError):
                total += self._path(key).stat().st_size
        return total

    def verify(self, *, full: bool) -> Iterator[str]:
        """The keys of damaged entries, found one after the other; none is removed.

        Args:
            full: read every voxel and compare checksums; otherwise only lengths and headers.
        """
        for key in self.keys():
            try:
                entry = self._read(key)
            except DamagedEntryError:
                yield key
                continue
            if full and entry is not None and entry.first_damage() is not None:
                yield key

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry.

        It saves double work and guards nothing else: reading and writing are safe without it. Where it cannot be had
        (a full disk, a folder of somebody else's, a file system without locks) it is therefore done without.
        """
        file_lock = FileLock(self._locks / f"{_checked(key)}.lock")
        with contextlib.suppress(OSError, NotImplementedError):
            file_lock.acquire()
        try:
            yield
        finally:
            file_lock.release()

    def _path(self, key: str) -> Path:
        return self._folder / f"{_checked(key)}{_SUFFIX}"

    def _read(self, key: str) -> Entry | None:
        path = self._path(key)
        try:
            content = map_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheError(
                f"cache.disk: entry {path} cannot be read ({error.strerror}); allow reading it or remove it"
            ) from error
        return unpack(key, content)

    def _write(self, key: str, parts: Sequence[memoryview]) -> None:
        descriptor, temp = self._open_temp(key)
        try:
            for part in parts:
                _write_all(descriptor, part)
            os.fsync(descriptor)
            os.replace(temp, self._path(key))
        finally:
            temp.unlink(missing_ok=True)
            os.close(descriptor)
        _sync_folder(self._folder)

    def _open_temp(self, key: str) -> tuple[int, Path]:
        while True:
            temp = self._folder / f".{_checked(key)}.{os.getpid()}-{secrets.token_hex(4)}{_TEMP_SUFFIX}"
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # The lock says "my writer lives": the kernel drops it with the process, however that ends, and unlike a
            # process id it means the same in every container that shares the folder.
            # Waited for, as a process that cleans up may hold it for a moment, and then the file is gone.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink > 0:
                return descriptor, temp
            # Another process cleaned up between our opening and our locking.
            os.close(descriptor)

    def _remove_abandoned(self) -> None:
        for temp in self._folder.glob(f".*{_TEMP_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                descriptor = os.open(temp, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _is_abandoned(descriptor):
                        temp.unlink()
                finally:
                    os.close(descriptor)

    def _error_of(self, error: OSError, case_id: str, num_bytes: int) -> CacheError:
        if error.errno not in _NO_SPACE:
            return CacheError(
                f"cache.disk: case '{case_id}' cannot be written to {self._folder} ({error.strerror}); "
                "set data.cache.folder to one you may write to"
            )
        free_bytes = shutil.disk_usage(self._folder).free
        return CacheFullError(
            f"cache.disk: no space for case '{case_id}' in {self._folder} ({error.strerror}): it needs "
            f"{num_bytes / 1e6:.1f} MB, {free_bytes / 1e6:.1f} MB are free; free some space or set data.cache.folder "
            "to another disk"
        )


def _checked(key: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z_-]+", key):
        raise ValueError(f"cache.disk: key {key!r} cannot name a file; use letters, digits, '-' and '_'")
    return key


def _write_all(descriptor: int, content: memoryview) -> None:
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written : written + _WRITE_BYTES])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems flush names at once and refuse to be asked.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _is_abandoned(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(descriptor).st_mtime > _MAX_TEMP_AGE_S
    return True
