"""The disk that holds a folder: what it is, and how fast it writes and reads without the page cache."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from voxelocity_observe.core.host import file_system_of, free_disk_bytes
from voxelocity_observe.core.kernel_files import file_number
from voxelocity_observe.diagnose.doctor.records import Disk

FILE_BYTES = 256 * 2**20
# With less free space, the test file could fill the disk.
MIN_FREE_BYTES = 8 * FILE_BYTES
# The limit for writing, and again for reading; a slow disk is measured on what it manages in that time.
MAX_S = 0.6
_BLOCK_BYTES = 4 * 2**20


def probe_disk(
    folder: Path, *, file_bytes: int = FILE_BYTES, min_free_bytes: int = MIN_FREE_BYTES, root: Path = Path("/")
) -> Disk:
    """The disk that holds `folder`, or the nearest parent folder that exists.

    Removes the test file's name before it writes the first byte, so that nothing is left however this ends.

    Args:
        folder: where to measure.
        file_bytes: size of the file, a multiple of 4 MiB.
        min_free_bytes: with less free space nothing is written.
        root: of the file system with `sys`, for tests.
    """
    place = folder.absolute()
    while not place.is_dir():
        place = place.parent
    number = place.stat().st_dev
    device = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    # A partition uses the queue of its disk.
    queues = (device / "queue/rotational", device.resolve().parent / "queue/rotational")
    disk = Disk(
        folder=str(place),
        free_bytes=free_disk_bytes(place),
        file_system=file_system_of(place),
        is_rotating=file_number(*queues) == 1,
    )
    if disk.free_bytes < min_free_bytes:
        return replace(disk, not_measured="too little free space to write a test file")
    try:
        return _measure(disk, place, file_bytes)
    except OSError as error:
        return replace(disk, not_measured=f"no file can be written there ({error.strerror})")


def _measure(disk: Disk, place: Path, file_bytes: int) -> Disk:
    with _nameless_file(place) as (descriptor, is_direct), mmap.mmap(-1, _BLOCK_BYTES) as block:
        # Bytes that no file system can compress.
        block.write(os.urandom(_BLOCK_BYTES))
        started = time.perf_counter()
        written = _move_blocks(lambda offset: os.pwrite(descriptor, block, offset), file_bytes, started)
        os.fsync(descriptor)
        write_s = time.perf_counter() - started
        if not is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        read = _move_blocks(lambda offset: os.preadv(descriptor, [block], offset), written, started)
        read_s = time.perf_counter() - started
    return replace(
        disk,
        write_bytes_per_s=written / write_s,
        read_bytes_per_s=read / read_s,
        # If only advice is possible, file systems without their own pages on a disk ignore it.
        past_page_cache=is_direct or disk.file_system not in ("tmpfs", "ramfs", "9p", "overlay"),
    )


def _move_blocks(move: Callable[[int], int], num_bytes: int, started: float) -> int:
    """Bytes moved, block by block, until there are `num_bytes` of them or the time is up."""
    done = 0
    while done < num_bytes and (done == 0 or time.perf_counter() - started < MAX_S):
        moved = move(done)
        if moved == 0:
            raise OSError(errno.EIO, "the file ends early")
        done += moved
    return done


@contextlib.contextmanager
def _nameless_file(place: Path) -> Iterator[tuple[int, bool]]:
    """A descriptor to write and read, and whether it goes past the page cache."""
    path = place / f".voxelocity-doctor-{secrets.token_hex(6)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # macOS does not have this flag.
        direct: int = getattr(os, "O_DIRECT", 0)
        descriptor, is_direct = os.open(path, flags | direct, 0o600), direct != 0
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The file is created before the file system reports that it does not support direct access.
        path.unlink(missing_ok=True)
        # Each block waits for the disk; otherwise the last sync could wait for all of them.
        descriptor, is_direct = os.open(path, flags | os.O_DSYNC, 0o600), False
    try:
        path.unlink()
        yield descriptor, is_direct
    finally:
        os.close(descriptor)
