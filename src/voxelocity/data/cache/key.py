"""Names of cache entries: a changed file, preparation or entry format gives another one, so nothing stale is served."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable

from voxelocity.core.errors import ScanError

FORMAT_VERSION = 3
"""Raised whenever the meaning or the layout of an entry changes; older entries are then never looked at."""


def source_identity(paths: Iterable[os.PathLike[str] | str]) -> str:
    """A text that changes when one of these files changes: path, size and time of change of each, in the given order.

    No file is opened, so voxels rewritten in place with size and time of change kept are not noticed.

    Raises:
        ScanError: a file is missing, cannot be looked at, or is no regular file.
    """
    return json.dumps([_file_identity(os.path.abspath(path)) for path in paths])


def entry_key(identity: str, preparation_fingerprint: str) -> str:
    """The name of a cache entry, 40 hexadecimal digits, for these sources prepared in this way.

    Args:
        identity: from `source_identity`.
        preparation_fingerprint: a text that changes whenever the prepared voxels of some case could change.
    """
    text = json.dumps([FORMAT_VERSION, identity, preparation_fingerprint])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def checked_key(key: str) -> str:
    """The key itself, which can name a file.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[0-9A-Za-z_-]+", key):
        raise ValueError(f"cache.key: key {key!r} cannot name a file; use letters, digits, '-' and '_'")
    return key


def _file_identity(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ScanError(
            f"cache.key: file {path} cannot be looked at ({error.strerror}); restore it or take the case out"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ScanError(f"cache.key: {path} is no regular file, so a change inside it would not be noticed; name files")
    return path, status.st_size, status.st_mtime_ns
