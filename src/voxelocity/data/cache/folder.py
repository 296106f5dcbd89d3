"""The folder of a cache: who may read its files, and which error to raise if it cannot be used."""

from __future__ import annotations

import errno
from pathlib import Path

from voxelocity.core.errors import CacheFullError, OutputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_GROUP_WRITES = 0o020


def make_folder(folder: Path) -> None:
    """Makes the folder, for this user alone, if it is missing. An existing one keeps its permissions.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


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
