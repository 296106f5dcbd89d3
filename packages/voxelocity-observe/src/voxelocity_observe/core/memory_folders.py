"""Folders of prepared cases in main memory: where they may lie, what they hold, and whether a process uses them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

USERS_NAME = ".users"
"""The file in such a folder on which each process that uses the folder holds a shared lock."""


@dataclass(frozen=True, kw_only=True)
class MemoryFolder:
    """A folder of this user in a file system in main memory.

    Attributes:
        num_bytes: memory that its files take.
        is_used: whether a living process uses it; an unused one was left behind by a process that was killed.
    """

    path: Path
    num_bytes: int
    is_used: bool


def memory_places() -> tuple[Path, ...]:
    """Where file systems in main memory are usually mounted, the largest first."""
    return (Path("/dev/shm"), Path(f"/run/user/{os.getuid()}"), Path(tempfile.gettempdir()))


def memory_folder_in(place: Path) -> Path:
    """The folder of this user in that place."""
    return place / f"voxelocity-{os.getuid()}"


def memory_folders(places: Iterable[Path] | None = None) -> list[MemoryFolder]:
    """The existing folders of this user.

    Args:
        places: where to look; by default `memory_places`.
    """
    paths = {memory_folder_in(place) for place in (memory_places() if places is None else places)}
    return [
        MemoryFolder(path=path, num_bytes=held_bytes(path), is_used=_is_used(path))
        for path in sorted(paths)
        if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    ]


def held_bytes(folder: Path) -> int:
    """Bytes that the files in this folder take; 0 where there is none."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    return 0


def _is_used(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / USERS_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # without locks this is unknown
    finally:
        os.close(descriptor)
    return False
