"""Writes files that others read: under another name, then moved to their place, so that no reader sees half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from voxelocity_observe.core.errors import OutputError

_SUFFIX = ".part"
# A file system allows 255 bytes for a name; a letter takes up to four of them.
_LONGEST_STEM = 40
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def whole_file(target: Path, *, is_durable: bool = True) -> Iterator[BinaryIO]:
    """An open file whose content `target` has once the block ends; after an error `target` is unchanged.

    It is written under a hidden name that cannot be guessed and ends in ".part", and never through a link. The umask
    sets its permissions. Several writers may write the same path at once: the last one wins.

    Args:
        target: the file; its folder exists.
        is_durable: whether the content is on the disk before it takes its place, so that a power cut leaves either the
            old file or the new one. Waits for the disk.

    Raises:
        OSError: the file cannot be written. It names `target`.
    """
    temporary = hidden_place(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        # An error in the middle of a write names no file, and the hidden name means nothing to the user.
        if error.filename in (None, os.fspath(temporary)):
            error.filename, error.filename2 = os.fspath(target), None
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def hidden_place(target: Path) -> Path:
    """Where to write what will have the path of the target: next to it, by a name that cannot be guessed."""
    return target.with_name(f".{target.name[:_LONGEST_STEM]}.{secrets.token_hex(8)}{_SUFFIX}")


def put_in_place(target: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Makes `target` hold exactly `content`. See `whole_file`.

    Raises:
        OSError: the folder does not exist, or the file cannot be written.
    """
    with whole_file(target, is_durable=is_durable) as file:
        file.write(content)


def write_whole(path: str | Path, content: bytes) -> Path:
    """As `put_in_place`, for a file that the user asked for. Missing parent folders are made.

    Raises:
        OutputError: the folder or the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(target, content)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "make space there, or choose another folder" if is_full else "free the path or choose another"
        raise OutputError(f"report: cannot write '{target}': {error.strerror or error}; {cure}") from error
    return target


class _Watched:
    """A file for writing that keeps its last error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def with_causes(file: BinaryIO) -> Iterator[Any]:
    """The file for `torch.save`, which turns the error of a write into a RuntimeError without its cause.

    Raises:
        OSError: a write failed.
    """
    watched = _Watched(file)
    try:
        yield watched
    except RuntimeError:
        if watched.error is not None:
            raise watched.error from None
        raise


def remove_abandoned(folder: Path, *, names: tuple[str, ...], older_than_s: float = 0.0) -> int:
    """Removes what killed writers of these files, or folders, left in a folder.

    Args:
        folder: may be missing.
        names: beginnings of the files' names.
        older_than_s: a younger file may belong to a writer still at work; 0 if there is none.

    Returns:
        How many were removed.
    """
    starts = tuple(f".{name[:_LONGEST_STEM]}" for name in names)
    try:
        left = [path for path in folder.iterdir() if path.name.startswith(starts) and path.name.endswith(_SUFFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    num_removed = 0
    for path in left:
        # Its writer may move it to its place at this moment.
        with contextlib.suppress(FileNotFoundError):
            if older_than_s == 0.0 or time.time() - path.stat().st_mtime > older_than_s:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                num_removed += 1
    return num_removed


def check_is_file(path: Path) -> Path:
    """The path, if opening it cannot block: a reader of a pipe waits for a writer that may never come.

    Raises:
        OSError: it does not exist, or is a pipe, a socket or a device.
    """
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", os.fspath(path))
    return path


def is_out_of_space(error: OSError) -> bool:
    """Whether the disk, the user's quota, or the maximum size of a file was used up."""
    return error.errno in _FULL
