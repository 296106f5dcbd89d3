"""The LMDB tier: the entries of the disk tier as values of one file, for file systems that handle few files."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError, EntryTooLargeError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array
from voxelocity.core.warn_once import Warn
from voxelocity.data.cache import lmdb_file
from voxelocity.data.cache.entry import Content, Format, Header, read_header
from voxelocity.data.cache.locks import file_mode
from voxelocity.data.cache.stored import EntryTier, EntryVolume, read_box

LMDB_NAME = "entries.lmdb"
_NUM_LOCK_FILES = 256
"""Few, as this tier is for places where files are a burden; many more than threads, so that they rarely collide."""


class LmdbTier(EntryTier[lmdb_file.LmdbFile]):
    """Volumes as values of one LMDB file in a folder. Safe to use from several threads and processes at once.

    A value appears whole or not at all, one writer at a time. A read opens a transaction, takes its box from the mapped
    file without touching the rest, and copies or decodes it, as the mapping may move when the file grows. A put needs
    the bytes of its volume once more meanwhile. Volumes handed out can no longer be read when their entry is dropped.

    Args:
        folder: made if it is missing, with access for this user alone; on a disk of this machine, as LMDB does not work
            on network file systems. An LMDB file that is damaged as a whole is removed; a read-only one is read.
        format: of the entries that are put; entries of either format are read.
        warn: called once for each cause: a damaged entry or file, a wait for another process that timed out.

    Raises:
        OutputError: the folder or the file cannot be made or written.
        CacheFullError: they cannot be made because the disk is full.
        CacheError: the package `lmdb` is missing, or the file is of another version of LMDB.
    """

    _name = "cache.lmdb"

    def __init__(self, folder: Path, *, format: Format = "raw", warn: Warn | None = None) -> None:
        super().__init__(folder, format=format, num_lock_files=_NUM_LOCK_FILES, warn=warn)

    def _note_use(self, key: str) -> None:
        """Nothing to note: no entry is removed to make room for another."""

    def _volume(self, key: str, header: Header, content: Content) -> StoredVolume:
        # Few bytes, and needed for every patch.
        foreground = {index: np.array(array) for index, array in header.foreground(content).items()}
        for array in foreground.values():
            array.flags.writeable = False
        return EntryVolume(
            case_id=header.case_id,
            header=header,
            foreground=foreground,
            read_box=functools.partial(self._read_box, key, header, bytes(content[: header.num_header_bytes])),
            on_damage=functools.partial(self._drop_damaged, key),
        )

    def _write(self, key: str, parts: Sequence[memoryview], num_bytes: int, case_id: str) -> None:
        if num_bytes > lmdb_file.MAX_VALUE_BYTES:
            raise EntryTooLargeError(
                f"cache.lmdb: case '{case_id}' takes {num_bytes / 1e6:.1f} MB, LMDB keeps at most "
                f"{lmdb_file.MAX_VALUE_BYTES / 1e6:.1f} MB in one value; choose data.cache.tier disk"
            )
        self._store.write(key, parts)

    def _entry_text(self, key: str) -> str:
        return f"entry {key} of {self._folder}"

    def _read_box(self, key: str, header: Header, start: bytes, region: Region) -> tuple[Array, Array | None]:
        with self._store.reading(key) as content:
            if content is None:
                raise CacheError(
                    f"cache.lmdb: entry {key} of {self._folder} was removed while it was in use; it is made again when "
                    "the case is taken"
                )
            # The same voxels may have been put again meanwhile, possibly in the other format.
            now = header if content[: len(start)] == start else read_header(key, content)
            return read_box(now, content, region)

    def _open_store(self) -> lmdb_file.LmdbFile:
        """The file; replaces a damaged one. One process at a time, so that none removes a new file."""
        path, mode = self._folder.resolve() / LMDB_NAME, file_mode(self._folder)
        with self._locks.hold(LMDB_NAME):
            try:
                file = lmdb_file.open_lmdb_file(path, mode=mode)
            except lmdb_file.DamagedFileError as error:
                remove_lmdb_file(path)
                self._warn("damaged file", f"{error}: it was removed, and its cases are prepared again")
                file = lmdb_file.open_lmdb_file(path, mode=mode)
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o777 & ~mode:
            # Made by an older version, which left its permissions to the umask.
            path.chmod(status.st_mode & mode)
        return file


def remove_lmdb_file(path: Path) -> None:
    """Removes the file and LMDB's lock file next to it. Processes that have it open keep it until they end.

    Raises:
        OSError: it cannot be removed.
    """
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
