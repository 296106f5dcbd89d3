"""Names of cache entries: a changed file, preparation or entry format changes the name, so nothing stale is served."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable

from voxelocity.core.errors import ScanError
from voxelocity.observe import file_system_of

FORMAT_VERSION = 4
"""Increased whenever the meaning or the layout of an entry changes; older entries are then never opened."""


def source_identity(paths: Iterable[os.PathLike[str] | str]) -> str:
    """A text that changes when one of these files changes, in the given order.

    For each file it holds the path, the target of a link, the inode, the size, and the times of content and of status.
    No file is opened. The system sets the time of status: it changes when a file is replaced or rewritten, even if its
    size and content time are kept, and also when a file is renamed or its permissions change.

    Raises:
        ScanError: a file is missing, its status cannot be read, or it is not a regular file.
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


_inodes_last: dict[int, bool] = {}
"""By device: whether a file there keeps its inode across mounts."""


def _file_identity(path: str) -> tuple[str, str, int, int, int, int]:
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
    except OSError as error:
        raise ScanError(
            f"cache.key: file {path} cannot be looked at ({error.strerror}); restore it or take the case out"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ScanError(f"cache.key: {path} is not a regular file, so a change in it would not be noticed; name files")
    if status.st_dev not in _inodes_last:
        # Most file systems in user space assign inode numbers at each mount, as files are looked up.
        _inodes_last[status.st_dev] = not file_system_of(os.path.dirname(real)).startswith("fuse")
    inode = status.st_ino if _inodes_last[status.st_dev] else 0
    return path, real, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
