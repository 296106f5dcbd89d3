"""The disk below a folder: what it is, and how fast it writes and reads when the page cache does not answer for it."""

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

from voxelocity.diagnosis.doctor.seen import Disk
from voxelocity.observe import file_system_of, free_disk_bytes

FILE_BYTES = 256 * 2**20
# Below, the file could be what fills the disk.
MIN_FREE_BYTES = 8 * FILE_BYTES
# At the most for writing, and again for reading; a slow disk is measured on what it manages in that time.
MAX_S = 0.6
_BLOCK_BYTES = 4 * 2**20
_ROOT = Path("/")


def see_disk(
    folder: Path, *, file_bytes: int = FILE_BYTES, min_free_bytes: int = MIN_FREE_BYTES, root: Path = _ROOT
) -> Disk:
    """The disk below `folder`, or below the nearest folder above it that exists.

    Writes a file that has no name any more before its first byte, so that nothing is left however this ends.

    Args:
        folder: where to measure.
        file_bytes: of the file, a multiple of 4 MiB.
        min_free_bytes: with less free nothing is written.
        root: of the file system with `sys`, for tests.
    """
    place = folder.absolute()
    while not place.is_dir():
        place = place.parent
    disk = Disk(
        folder=str(place),
        free_bytes=free_disk_bytes(place),
        file_system=file_system_of(place),
        device=_device(place, root),
    )
    if disk.free_bytes < min_free_bytes:
        return replace(disk, not_measured="too little of it is free to write a file for a test")
    try:
        return _measured(disk, place, file_bytes)
    except OSError as error:
        return replace(disk, not_measured=f"no file can be written there ({error.strerror})")


def _measured(disk: Disk, place: Path, file_bytes: int) -> Disk:
    with _nameless_file(place) as (descriptor, is_direct), mmap.mmap(-1, _BLOCK_BYTES) as block:
        # Bytes that no file system can pack.
        block.write(os.urandom(_BLOCK_BYTES))
        started = time.perf_counter()
        written = _moved(lambda offset: os.pwrite(descriptor, block, offset), file_bytes, started)
        os.fsync(descriptor)
        write_s = time.perf_counter() - started
        if not is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        read = _moved(lambda offset: os.preadv(descriptor, [block], offset), written, started)
        read_s = time.perf_counter() - started
    return replace(
        disk,
        write_bytes_per_s=written / write_s,
        read_bytes_per_s=read / read_s,
        # Where only advice can be given, a file system without pages of its own on a disk ignores it.
        past_page_cache=is_direct or disk.file_system not in ("tmpfs", "ramfs", "9p", "overlay"),
    )


def _moved(move: Callable[[int], int], num_bytes: int, started: float) -> int:
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
        # macOS has no such flag.
        direct: int = getattr(os, "O_DIRECT", 0)
        descriptor, is_direct = os.open(path, flags | direct, 0o600), direct != 0
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The file is made before the file system says that it knows no direct access.
        path.unlink(missing_ok=True)
        # Each block waits for the disk, as otherwise the last sync could wait for all of them.
        descriptor, is_direct = os.open(path, flags | os.O_DSYNC, 0o600), False
    try:
        path.unlink()
        yield descriptor, is_direct
    finally:
        os.close(descriptor)


def _device(place: Path, root: Path) -> str:
    """Whether the disk turns, by its queue in /sys; a partition has that of its disk."""
    number = place.stat().st_dev
    device = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    for queue in (device / "queue/rotational", device.resolve().parent / "queue/rotational"):
        with contextlib.suppress(OSError):
            return "rotating" if queue.read_text().strip() == "1" else "solid state"
    return ""
