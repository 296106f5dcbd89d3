"""Writes a finished file in one move, so that nobody ever opens half a page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from voxelocity.core.errors import OutputError


def write_whole(path: str | Path, content: bytes) -> Path:
    """The path, which now holds exactly `content`. Until then, and after a failure, it holds what it held before.

    Missing parent folders are made. Safe beside other writers of the same path: the last one wins.

    Raises:
        OutputError: the folder or the file cannot be written.
    """
    target = Path(path)
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes private files; a report is meant to be read by whoever may read the folder.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise OutputError(
            f"report: cannot write '{target}': {error.strerror or error}; free the path or choose another"
        ) from error
    return target
