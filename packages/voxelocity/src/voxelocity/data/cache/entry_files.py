"""Entries as files of a folder: each appears whole or not at all, and outlives a loss of power. Knows no format.

A file's bytes are mapped as read-only memory or read piece by piece, without keeping a file descriptor open: Python's
`mmap` keeps one per mapping (before 3.13), so a thousand cached cases would reach the usual limit of 1024 open files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import secrets
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from voxelocity.data.cache.locks import file_mode, is_abandoned
from voxelocity_observe.core.host import file_system_of, is_on_network

SUFFIX = ".safetensors"
TEMP_SUFFIX = ".tmp"
_TEMP = re.compile(rf"\.[\w-]+\.\d+-[0-9a-f]{{8}}{re.escape(TEMP_SUFFIX)}")
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""What a flush says when something was not written."""
_WRITE_BYTES = 16 * 2**20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> memoryview:
    """The whole file as read-only memory, mapped until the last view of it is gone.

    The file may be unlinked or replaced meanwhile; it must not be made shorter.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes == 0:
            return memoryview(b"")
        address = _libc.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    memory = (ctypes.c_ubyte * num_bytes).from_address(address)
    unmap = weakref.finalize(memory, _libc.munmap, address, num_bytes)
    # At exit other threads may still read; the kernel unmaps when they are gone.
    unmap.atexit = False
    return memoryview(memory).cast("B").toreadonly()


class FileBytes:
    """A file's bytes; each slice is read on demand. Safe to use from several threads.

    For network file systems: if the server or another machine removes a file, a mapped page of it ends the process
    with a signal, while a read raises an error.

    Args:
        path: of the file, which must stay the same one.

    Raises:
        OSError: the file cannot be opened; slices raise it too, also where the file was replaced or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        status = os.stat(path)
        self._inode, self._num_bytes = status.st_ino, status.st_size

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, place: slice, /) -> memoryview:
        start, stop, step = place.indices(self._num_bytes)
        assert step == 1, f"step {step}"
        return next(self.pieces([(start, stop)]))

    def pieces(self, ranges: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """The bytes from start to stop (excluded) of each place, each in its own memory."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_ino, status.st_size) != (self._inode, self._num_bytes):
                raise OSError(errno.ESTALE, "it was replaced while it was in use", str(self.path))
            for start, stop in ranges:
                yield _read(descriptor, start, stop - start, self.path)
        finally:
            os.close(descriptor)


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
        return self._folder / f"{key}{SUFFIX}"

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return sorted(path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}"))

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

    def reading(self, key: str) -> AbstractContextManager[memoryview | FileBytes | None]:
        """As `open`, with the interface of `LmdbFile.reading`; here the bytes also stay valid after the block."""
        return nullcontext(self.open(key))

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

    def evict(self, key: str) -> None:
        """Removes this entry to make room for others."""
        self.drop(key)

    def touch(self, key: str) -> None:
        """Marks the entry as used now, where this user may."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def oldest_first(self) -> list[tuple[str, int]]:
        """Key and bytes of all entries, the one used longest ago first."""
        return [(path.name.removesuffix(SUFFIX), size) for path, size in oldest_first(self._folder)]

    def remove_abandoned(self) -> None:
        """Removes what writers that died left behind."""
        for temp in self._folder.glob(f".*{TEMP_SUFFIX}"):
            # Other programs have files of such names; and in a folder that may only be read, remains are no harm.
            if _TEMP.fullmatch(temp.name):
                with contextlib.suppress(OSError):
                    remove_if_abandoned(temp)

    def _open_temp(self, key: str) -> tuple[int, Path]:
        mode = file_mode(self._folder)
        while True:
            temp = self._folder / f".{key}.{os.getpid()}-{secrets.token_hex(4)}{TEMP_SUFFIX}"
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
    return sum(size for _, size in oldest_first(folder))


def remove_if_abandoned(temp: Path) -> None:
    """Removes a temporary file, if its writer has died."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(temp, os.O_RDWR | os.O_CLOEXEC)
        try:
            if is_abandoned(descriptor):
                temp.unlink()
        finally:
            os.close(descriptor)


def oldest_first(folder: Path) -> list[tuple[Path, int]]:
    """Path and bytes of all entries in this folder, the one used longest ago first; none where it cannot be read."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, Path(entry.path), status.st_size))
    return [(path, size) for _, path, size in sorted(found)]


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


def _read(descriptor: int, start: int, num_bytes: int, path: Path) -> memoryview:
    content = memoryview(bytearray(num_bytes))
    done = 0
    while done < num_bytes:
        taken = os.preadv(descriptor, [content[done:]], start + done)
        if taken == 0:
            raise OSError(errno.EIO, "it was cut short while it was in use", str(path))
        done += taken
    return content.toreadonly()
