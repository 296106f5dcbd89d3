"""Writes a finished file in one move, so that nobody ever opens half a page."""

from __future__ import annotations

from pathlib import Path

from voxelocity.core.errors import OutputError
from voxelocity.core.whole_file import put_in_place


def write_whole(path: str | Path, content: bytes) -> Path:
    """The path, which now holds exactly `content`. Until then, and after a failure, it holds what it held before.

    Missing parent folders are made. Safe beside other writers of the same path: the last one wins.

    Raises:
        OutputError: the folder or the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(target, content)
    except OSError as error:
        raise OutputError(
            f"report: cannot write '{target}': {error.strerror or error}; free the path or choose another"
        ) from error
    return target
