"""The LMDB tier: the entries of the disk tier as values of one file, for file systems that handle few files."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError, EntryTooLargeError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Volume
from voxelocity.core.warn_once import Warn, WarnOnce
from voxelocity.data.cache import lmdb_file
from voxelocity.data.cache.entry import MADE_AGAIN, DamagedEntryError, Format, Header, check_arrays, pack, read_header
from voxelocity.data.cache.folder import file_mode, folder_error
from voxelocity.data.cache.key import checked_key
from voxelocity.data.cache.locks import KeyLocks
from voxelocity.data.cache.stored import EntryVolume, read_box

LMDB_NAME = "entries.lmdb"
_NUM_LOCK_FILES = 256
"""Few, as this tier is for places where files are a burden; many more than threads, so that they rarely collide."""


class LmdbTier:
    """Volumes as values of one LMDB file in a folder. Safe to use from several threads and processes at once.

    A value appears whole or not at all, one writer at a time. A read opens a transaction, takes its box from the mapped
    file without touching the rest, and copies or decodes it, as the mapping may move when the file grows.

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

    def __init__(self, folder: Path, *, format: Format = "raw", warn: Warn | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._format = format
        self._checked: set[str] = set()
        self._warn = WarnOnce(warn)
        try:
            self._locks = KeyLocks(self._folder, num_files=_NUM_LOCK_FILES, warn=warn)
            self._file = self._opened()
        except OSError as error:
            raise folder_error("cache.lmdb", self._folder, error) from error

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped).

        Raises:
            CacheError: the file cannot be read.
        """
        drop = functools.partial(self._drop_damaged, key)
        try:
            with self._file.reading(checked_key(key)) as content:
                if content is None:
                    return None
                header = read_header(key, content)
                if key not in self._checked:
                    check_arrays(header, content, full=True)
                    self._checked.add(key)
                start = bytes(content[: header.num_header_bytes])
                # Few bytes, and needed for every patch.
                foreground = {index: np.array(array) for index, array in header.foreground(content).items()}
        except DamagedEntryError as error:
            drop()
            self._warn("damaged", f"cache.lmdb: entry {key} of {self._folder} is damaged: {error}; {MADE_AGAIN}")
            return None
        for array in foreground.values():
            array.flags.writeable = False
        return EntryVolume(
            case_id=header.case_id,
            header=header,
            foreground=foreground,
            read_box=functools.partial(self._read_box, key, header, start),
            on_damage=drop,
        )

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume; it survives a loss of power once this returns. Needs its bytes once more meanwhile.

        Raises:
            EntryTooLargeError: it takes more than the 4 GiB that LMDB allows.
            CacheFullError: there is no space for it; nothing is left behind.
            CacheError: it cannot be written for another reason; nothing is left behind.
        """
        checked_key(key)
        parts = pack(key, volume, format=self._format)
        num_bytes = sum(len(part) for part in parts)
        if num_bytes > lmdb_file.MAX_VALUE_BYTES:
            raise EntryTooLargeError(
                f"cache.lmdb: case '{volume.case_id}' takes {num_bytes / 1e6:.1f} MB, LMDB keeps at most "
                f"{lmdb_file.MAX_VALUE_BYTES / 1e6:.1f} MB in one value; choose data.cache.tier disk"
            )
        self._file.write(key, parts)

    def drop(self, key: str) -> None:
        """Removes this entry if there is one, damaged or not. Volumes handed out can then no longer be read."""
        self._checked.discard(key)
        self._file.drop(checked_key(key))
        self._locks.forget(key)

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return self._file.keys()

    def bytes_used(self) -> int:
        """Bytes of the pages that hold entries; the file may be larger."""
        return self._file.bytes_used()

    def verify(self, *, full: bool) -> Iterator[str]:
        """The keys of damaged entries, found one after the other; none is removed.

        Args:
            full: read every voxel and compare checksums; otherwise only lengths, headers and foreground indices.
        """
        for key in self.keys():
            if self._is_damaged(key, full=full):
                yield key

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry."""
        return self._locks.hold(checked_key(key))

    def _is_damaged(self, key: str, *, full: bool) -> bool:
        try:
            with self._file.reading(key) as content:
                if content is None:
                    return False
                header = read_header(key, content)
                return header.first_damage(content, full=full) is not None
        except DamagedEntryError:
            return True

    def _read_box(self, key: str, header: Header, start: bytes, region: Region) -> tuple[Array, Array | None]:
        with self._file.reading(key) as content:
            if content is None:
                raise CacheError(
                    f"cache.lmdb: entry {key} of {self._folder} was removed while it was in use; it is made again when "
                    "the case is taken"
                )
            # The same voxels may have been put again meanwhile, possibly in the other format.
            now = header if content[: len(start)] == start else read_header(key, content)
            return read_box(now, content, region)

    def _opened(self) -> lmdb_file.LmdbFile:
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

    def _drop_damaged(self, key: str) -> None:
        # Where we may only read, the damaged entry stays, but it is never served.
        self._checked.discard(key)
        with contextlib.suppress(CacheError):
            self._file.drop(key)


def remove_lmdb_file(path: Path) -> None:
    """Removes the file and LMDB's lock file next to it. Processes that have it open keep it until they end.

    Raises:
        OSError: it cannot be removed.
    """
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
