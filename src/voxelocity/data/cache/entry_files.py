"""Entries as files of a folder: each appears whole or not at all, and outlives a loss of power. Knows no format."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxelocity.data.cache.folder import file_mode
from voxelocity.data.cache.mapping import FileBytes, map_file
from voxelocity.observe import file_system_of
from voxelocity.observe.host import is_on_network

_SUFFIX = ".safetensors"
_TEMP_SUFFIX = ".tmp"
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""What a flush says when something was not written."""
_WRITE_BYTES = 16 * 2**20
_MAX_TEMP_AGE_S = 86400.0
"""Age at which a temporary file counts as abandoned on a file system without locks, which cannot show that its writer
lives."""


class EntryFiles:
    """Immutable files by key. Safe to use from several threads and processes at once.

    A file is written next to its place, flushed to the disk, then renamed. Only the user may read it, or the group too
    where the group may write into the folder.

    Args:
        folder: exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_mapped = not is_on_network(file_system_of(folder))

    def path(self, key: str) -> Path:
        """The path of the entry under this key, whether or not it exists."""
        return self._folder / f"{key}{_SUFFIX}"

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}"))

    def open(self, key: str) -> memoryview | FileBytes | None:
        """The bytes under this key, or None where there are none.

        On a network file system they are read on demand; elsewhere they are mapped until the last view of them is gone.

        Raises:
            OSError: the file is there and cannot be opened.
        """
        try:
            return map_file(self.path(key)) if self._is_mapped else FileBytes(self.path(key))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def reading(self, key: str) -> Iterator[memoryview | FileBytes | None]:
        """As `open`, with the interface of `LmdbFile.reading`; here the bytes also stay valid after the block."""
        yield self.open(key)

    def write(self, key: str, parts: Sequence[memoryview]) -> None:
        """Puts these bytes under the key; they survive a loss of power once this returns.

        Raises:
            OSError: they cannot be written; nothing is left behind.
        """
        descriptor, temp = self._open_temp(key)
        try:
            for part in parts:
                write_all(descriptor, part)
            os.fsync(descriptor)
            os.replace(temp, self.path(key))
        finally:
            temp.unlink(missing_ok=True)
            os.close(descriptor)
        _sync_folder(self._folder)

    def drop(self, key: str) -> None:
        """Removes this entry if there is one. Mapped bytes stay valid."""
        self.path(key).unlink(missing_ok=True)

    def bytes_used(self) -> int:
        """Bytes of all files of entries."""
        return sum(size for _, size in self.oldest_first())

    def touch(self, key: str) -> None:
        """Marks the entry as used now, where this user may."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def oldest_first(self) -> list[tuple[str, int]]:
        """Key and bytes of all entries, the one used longest ago first."""
        found = []
        for key in self.keys():
            with contextlib.suppress(FileNotFoundError):
                status = self.path(key).stat()
                found.append((status.st_mtime_ns, key, status.st_size))
        return [(key, size) for _, key, size in sorted(found)]

    def remove_abandoned(self) -> None:
        """Removes what writers that died left behind."""
        for temp in self._folder.glob(f".*{_TEMP_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                descriptor = os.open(temp, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _is_abandoned(descriptor):
                        temp.unlink()
                finally:
                    os.close(descriptor)

    def _open_temp(self, key: str) -> tuple[int, Path]:
        mode = file_mode(self._folder)
        while True:
            temp = self._folder / f".{key}.{os.getpid()}-{secrets.token_hex(4)}{_TEMP_SUFFIX}"
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            # The lock says "my writer lives": the kernel drops it with the process, however that ends, and unlike a
            # process id it means the same in every container that shares the folder.
            # We wait for it because a process that cleans up may hold it for a moment; then the file is gone.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink > 0:
                return descriptor, temp
            # Another process cleaned up between our opening and our locking.
            os.close(descriptor)


def disk_bytes_in(folder: Path) -> int:
    """Bytes that entries of the disk tier take in this folder; 0 where there are none."""
    return EntryFiles(folder).bytes_used()


def write_all(descriptor: int, content: memoryview) -> None:
    """Writes every byte, even if the system accepts only a few at a time."""
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written : written + _WRITE_BYTES])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems refuse the call (EINVAL, ENOTSUP, EBADF on FUSE): they flush names at once, or never.
        if error.errno in _LOST:
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
