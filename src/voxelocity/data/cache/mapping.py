"""A file's bytes, mapped as read-only memory or read piece by piece, without keeping a file descriptor open.

Python's `mmap` keeps one descriptor per mapping (before 3.13), so a data set of a thousand cached cases would reach
the usual limit of 1024 open files. The C call itself needs the descriptor only for the moment of mapping.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_ssize_t,
]
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

    def pieces(self, places: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """The bytes from start to stop (excluded) of each place, each in its own memory."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_ino, status.st_size) != (self._inode, self._num_bytes):
                raise OSError(errno.ESTALE, "it was replaced while it was in use", str(self.path))
            for start, stop in places:
                yield _read(descriptor, start, stop - start, self.path)
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
