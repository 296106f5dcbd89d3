"""A file's bytes as read-only memory, without a file descriptor held open.

Python's `mmap` keeps one descriptor per mapping (before 3.13), so a data set of a thousand cached cases would reach
the usual limit of 1024 open files. The C call itself needs the descriptor only for the moment of mapping.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
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
