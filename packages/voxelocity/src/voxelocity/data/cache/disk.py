"""The tiers on a disk, kept across runs: one immutable file per prepared volume, or one LMDB file for all.

The LMDB tier is for file systems that handle few files. Both keep the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.region import Region
from voxelocity.core.volume import Array
from voxelocity.data.cache import lmdb_file
from voxelocity.data.cache.entry import EntryBytes, Format, Header, is_named_by_us, read_header
from voxelocity.data.cache.entry_files import EntryFiles
from voxelocity.data.cache.locks import LOCKS_NAME, NO_SPACE, Uses, file_mode
from voxelocity.data.cache.remote_files import RemoteEntryFiles
from voxelocity.data.cache.stored import EntryTier, mapped_volume, read_box
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError
from voxelocity_observe.core.warn_once import Warn

_COUNT_EVERY = 256
"""Entries put between two scans of the folder. A scan takes as long as querying the size of each file."""
_NUM_LOCK_FILES = 256
"""Few, as the LMDB tier is for places where files are a burden; many more than threads, so that they rarely collide."""


_T = TypeVar("_T")


class DiskTier(EntryTier[EntryFiles]):
    """Volumes as files in a folder. Safe to use from several threads and processes at once.

    An entry appears whole or not at all. Arrays are stored in C order, whatever their order in memory. A "raw" entry
    returns its arrays as read-only views of the mapped file. Each read of a "blosc2" entry decodes the chunks it
    touches. On a network file system nothing is mapped, and each read takes its lines from the file. No file stays
    open. Sequences in a trace come back as lists. Volumes already handed out stay valid when their entry is dropped.

    Args:
        folder: made if it is missing, with access for this user alone. Files that dead writers left are removed.
        url: of a folder on an object store, which then holds all entries, and `folder` those that were used here.
        format: of the entries that are put; entries of either format are read.
        max_bytes: limit on all entries in the folder, including those of other runs. Before a put exceeds it, the
            least recently used entries go, but none that a living process has requested. 0: no limit.
        warn: called once for each cause: a damaged entry, a wait for another process that timed out.

    Raises:
        OutputError: the folder cannot be made or written.
        CacheFullError: it cannot be made because the disk is full.
        InputError: the URL cannot be opened.
    """

    _name = "cache.disk"

    def __init__(
        self, folder: Path, *, url: str = "", format: Format = "raw", max_bytes: int = 0, warn: Warn | None = None
    ) -> None:
        self._url = url
        super().__init__(folder, format=format, num_lock_files=0, warn=warn)
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_put = 0
        self._space_lock = threading.Lock()

    def get(self, key: str) -> StoredVolume | None:
        return self._retry_if_replaced(key, functools.partial(super().get, key))

    def drop(self, key: str) -> None:
        """Removes this entry if there is one, damaged or not.

        Raises:
            OSError: it is there and cannot be removed.
        """
        self._uses.withdraw(key)
        super().drop(key)

    def _open_store(self) -> EntryFiles:
        if self._url:
            make_room = functools.partial(self._make_room, what="an entry")
            files: EntryFiles = RemoteEntryFiles(self._folder, self._url, make_room=make_room)
        else:
            files = EntryFiles(self._folder)
        self._uses = Uses(self._folder / LOCKS_NAME)
        files.remove_abandoned()
        return files

    def _note_use(self, key: str) -> None:
        if self._uses.note(key):
            self._store.touch(key)

    def _volume(self, key: str, header: Header, content: EntryBytes) -> StoredVolume:
        if header.format == "raw" and isinstance(content, memoryview):
            return mapped_volume(header, content)
        read = functools.partial(self._read_box, key, header, content)
        return self._entry_volume(key, header, header.foreground(content), read)

    def _write(self, key: str, parts: Sequence[memoryview], num_bytes: int, case_id: str) -> None:
        self._make_room(num_bytes, what=f"case '{case_id}'")
        try:
            self._store.write(key, parts)
        except OSError as error:
            raise self._error_of(error, case_id, num_bytes) from error
        self._uses.note(key)

    def _make_room(self, num_bytes: int, *, what: str) -> None:
        if self._max_bytes == 0:
            return
        with self._space_lock:
            # Others put entries too, so our own count is only valid for a while.
            is_due = self._num_put % _COUNT_EVERY == 0
            self._num_put += 1
            if is_due or self._num_bytes + num_bytes > self._max_bytes:
                self._num_bytes = self._evict(num_bytes)
            if self._num_bytes + num_bytes > self._max_bytes:
                raise CacheFullError(
                    f"cache.disk: no space for {what} of {num_bytes / 1e6:.1f} MB: entries in use take "
                    f"{self._num_bytes / 1e6:.1f} MB of the {self._max_bytes / 1e6:.1f} MB allowed in {self._folder}; "
                    "raise data.cache.folder_max_bytes"
                )
            self._num_bytes += num_bytes

    def _evict(self, num_bytes: int) -> int:
        """Removes entries until this much more fits, if possible; returns the bytes of the rest."""
        # Of other programs' files of this kind, such as weights of models, none may go.
        entries = [(key, size) for key, size in self._store.oldest_first() if is_named_by_us(key)]
        total = sum(size for _, size in entries)
        if total + num_bytes <= self._max_bytes:
            return total
        in_use = self._uses.in_use()
        # A few more than needed where there are many, so that not every put has to scan all of them.
        aim = self._max_bytes - num_bytes - total // 32
        num_removed = 0
        for key, size in entries:
            if total <= aim:
                break
            if key not in in_use:
                with contextlib.suppress(OSError):
                    self._store.evict(key)
                    total -= size
                    num_removed += 1
        if num_removed:
            self._warn(
                "evicted",
                f"cache.disk: {self._folder} has reached {self._max_bytes / 1e9:.1f} GB (data.cache.folder_max_bytes): "
                "unused entries are now removed, least recently used first, and prepared again if needed",
            )
        return total

    def _retry_if_replaced(self, key: str, work: Callable[[], _T]) -> _T:
        """What `work` returns; retries if another process replaced the entry with the same content meanwhile."""
        for is_last in (False, False, True):
            try:
                return work()
            except OSError as error:
                if error.errno != errno.ESTALE or is_last:
                    raise self._unreadable(key, error) from error
        raise AssertionError("the last time returns or raises")

    def _read_box(self, key: str, header: Header, content: EntryBytes, region: Region) -> tuple[Array, Array | None]:
        try:
            return read_box(header, content, region)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # The same voxels may have been put again meanwhile.
            found = self._retry_if_replaced(key, lambda: self._read_box_now(key, region))
            if found is None:
                raise
            return found

    def _read_box_now(self, key: str, region: Region) -> tuple[Array, Array | None] | None:
        content = self._store.open(key)
        return None if content is None else read_box(read_header(key, content), content, region)

    def _unreadable(self, key: str, error: OSError) -> CacheError:
        return CacheError(
            f"cache.disk: entry {self._store.path(key)} cannot be read ({error.strerror}); make it readable "
            "or remove it"
        )

    def _entry_text(self, key: str) -> str:
        return str(self._store.path(key))

    def _error_of(self, error: OSError, case_id: str, num_bytes: int) -> CacheError:
        if error.errno not in NO_SPACE:
            return CacheError(
                f"cache.disk: case '{case_id}' cannot be written to {self._folder} ({error.strerror}); "
                "set data.cache.folder to one you may write to"
            )
        free_bytes = shutil.disk_usage(self._folder).free
        return CacheFullError(
            f"cache.disk: no space for case '{case_id}' in {self._folder} ({error.strerror}): it needs "
            f"{num_bytes / 1e6:.1f} MB, {free_bytes / 1e6:.1f} MB are free; free some space or set data.cache.folder "
            "to another disk"
        )


class LmdbTier(EntryTier[lmdb_file.LmdbFile]):
    """Volumes as values of one LMDB file in a folder. Safe to use from several threads and processes at once.

    A value appears whole or not at all, one writer at a time. A read opens a transaction, takes its box from the mapped
    file without touching the rest, and copies or decodes it, as its pages may be used again later. A put needs the
    bytes of its volume once more meanwhile. Volumes handed out can no longer be read when their entry is dropped.

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

    def _volume(self, key: str, header: Header, content: EntryBytes) -> StoredVolume:
        # Few bytes, and needed for every patch.
        foreground = {index: np.array(array) for index, array in header.foreground(content).items()}
        for array in foreground.values():
            array.flags.writeable = False
        read = functools.partial(self._read_box, key, header, bytes(content[: header.num_header_bytes]))
        return self._entry_volume(key, header, foreground, read)

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
                    f"cache.lmdb: entry {key} of {self._folder} was removed while it was in use; it is prepared "
                    "again when the case is used"
                )
            # The same voxels may have been put again meanwhile, possibly in the other format.
            now = header if content[: len(start)] == start else read_header(key, content)
            return read_box(now, content, region)

    def _open_store(self) -> lmdb_file.LmdbFile:
        """The file; replaces a damaged one. One process at a time, so that none removes a new file."""
        path, mode = self._folder.resolve() / lmdb_file.LMDB_NAME, file_mode(self._folder)
        with self._locks.hold(lmdb_file.LMDB_NAME):
            try:
                file = lmdb_file.open_lmdb_file(path, mode=mode)
            except lmdb_file.DamagedFileError as error:
                lmdb_file.remove_lmdb_file(path)
                self._warn("damaged file", f"{error}: it was removed, and its cases are prepared again")
                file = lmdb_file.open_lmdb_file(path, mode=mode)
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o777 & ~mode:
            # Made by an older version, which left its permissions to the umask.
            with contextlib.suppress(OSError):
                path.chmod(status.st_mode & mode)
        return file
