"""Puts a finished file in its place in one move, so that nobody ever opens half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put_in_place(target: Path, content: bytes) -> None:
    """`target` now holds exactly `content`. Until then, and after a failure, it holds what it held before.

    It is written beside its place, under a hidden name that ends in ".part", and may be read by whoever may read its
    folder. Safe beside other writers of the same path: the last one wins.

    Raises:
        OSError: the folder is not there, or the file cannot be written.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes private files; pages are meant for other people, and collectors run as another user.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise
