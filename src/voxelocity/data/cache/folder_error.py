"""What it means that a cache's folder cannot be opened: a person's mistake, or a disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path

from voxelocity.core.errors import CacheFullError, OutputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def folder_error(tier: str, folder: Path, error: OSError) -> OutputError | CacheFullError:
    """The error to raise: a full disk must not end a run, a folder that nobody may write to should."""
    if error.errno in NO_SPACE:
        return CacheFullError(
            f"{tier}: no space in {folder} ({error.strerror}); free some space or set data.cache.folder to another disk"
        )
    return OutputError(
        f"{tier}: folder {folder} cannot be used ({error.strerror}); set data.cache.folder to one you may write to"
    )
