"""The disk tier: one immutable, memory-mapped file per prepared volume, shared by processes and kept across runs."""

from __future__ import annotations

import contextlib
import errno
import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError, CacheFullError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Volume
from voxelocity.core.warn_once import Warn, WarnOnce
from voxelocity.data.cache.entry import (
    MADE_AGAIN,
    Content,
    DamagedEntryError,
    Format,
    Header,
    check_arrays,
    pack,
    read_header,
)
from voxelocity.data.cache.entry_files import EntryFiles
from voxelocity.data.cache.folder import NO_SPACE, folder_error
from voxelocity.data.cache.key import checked_key
from voxelocity.data.cache.locks import LOCKS_NAME, KeyLocks
from voxelocity.data.cache.stored import EntryVolume, mapped_volume, read_box
from voxelocity.data.cache.uses import Uses

_COUNT_EVERY = 256
"""Entries put between two scans of the folder. A scan takes as long as querying the size of each file."""


_T = TypeVar("_T")


class DiskTier:
    """Volumes as files in a folder. Safe to use from several threads and processes at once.

    An entry appears whole or not at all. Arrays are stored in C order, whatever their order in memory. A "raw" entry
    returns its arrays as read-only views of the mapped file. Each read of a "blosc2" entry decodes the chunks it
    touches. On a network file system nothing is mapped, and each read takes its lines from the file. No file stays
    open. Sequences in a trace come back as lists.

    Args:
        folder: made if it is missing, with access for this user alone. Files that dead writers left are removed.
        format: of the entries that are put; entries of either format are read.
        max_bytes: limit on all entries in the folder, including those of other runs. Before a put exceeds it, the
            least recently used entries go, but none that a living process has requested. 0: no limit.
        warn: called once for each cause: a damaged entry, a wait for another process that timed out.

    Raises:
        OutputError: the folder cannot be made or written.
        CacheFullError: it cannot be made because the disk is full.
    """

    def __init__(self, folder: Path, *, format: Format = "raw", max_bytes: int = 0, warn: Warn | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._format = format
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_put = 0
        self._checked: set[str] = set()
        self._warn = WarnOnce(warn)
        self._room = threading.Lock()
        try:
            self._locks = KeyLocks(self._folder, warn=warn)
            self._files = EntryFiles(self._folder)
            self._uses = Uses(self._folder / LOCKS_NAME)
            self._files.remove_abandoned()
        except OSError as error:
            raise folder_error("cache.disk", self._folder, error) from error

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped).

        The length and the header are checked each time, every byte when this tier first opens the entry.

        Raises:
            CacheError: the file is there and cannot be read.
        """
        return self._again_if_replaced(key, lambda: self._get(key))

    def _get(self, key: str) -> StoredVolume | None:
        drop = functools.partial(self._drop_damaged, key)
        try:
            found = self._read(key)
            if found is None:
                return None
            header, content = found
            if self._uses.note(key):
                self._files.touch(key)
            if key not in self._checked:
                check_arrays(header, content, full=True)
                self._checked.add(key)
            if header.format == "raw" and isinstance(content, memoryview):
                return mapped_volume(header, content)
            foreground = header.foreground(content)
        except DamagedEntryError as error:
            drop()
            self._warn("damaged", f"cache.disk: {self._files.path(key)} is damaged: {error}; {MADE_AGAIN}")
            return None
        return EntryVolume(
            case_id=header.case_id,
            header=header,
            foreground=foreground,
            read_box=functools.partial(self._read_box, key, header, content),
            on_damage=drop,
        )

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume; it survives a loss of power once this returns.

        In the format "raw" an array that is not in C order is copied for the duration of the call.

        Raises:
            CacheFullError: there is no space, or no quota, for it, or `max_bytes` are in use; nothing is left behind.
            CacheError: it cannot be written for another reason; nothing is left behind.
        """
        checked_key(key)
        parts = pack(key, volume, format=self._format)
        num_bytes = sum(len(part) for part in parts)
        if self._max_bytes > 0:
            self._make_room(num_bytes, volume.case_id)
        try:
            self._files.write(key, parts)
        except OSError as error:
            raise self._error_of(error, volume.case_id, num_bytes) from error
        self._uses.note(key)

    def drop(self, key: str) -> None:
        """Removes this entry if there is one, damaged or not. Volumes already handed out stay valid.

        Raises:
            OSError: it is there and cannot be removed.
        """
        self._checked.discard(key)
        self._uses.withdraw(key)
        self._files.drop(checked_key(key))
        self._locks.forget(key)

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return self._files.keys()

    def bytes_used(self) -> int:
        """Bytes of all entry files."""
        return self._files.bytes_used()

    def verify(self, *, full: bool) -> Iterator[str]:
        """The keys of damaged entries, found one after the other; none is removed.

        Args:
            full: read every voxel and compare checksums; otherwise only lengths, headers and foreground indices.
        """
        for key in self.keys():
            try:
                self._again_if_replaced(key, functools.partial(self._check, key, full=full))
            except DamagedEntryError:
                yield key

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry.

        It saves double work and guards nothing else: reading and writing are safe without it. Where it is not available
        (a full disk, another user's folder, a file system without locks), the caller proceeds without it.
        """
        return self._locks.hold(checked_key(key))

    def _make_room(self, num_bytes: int, case_id: str) -> None:
        with self._room:
            # Others put entries too, so our own count is only valid for a while.
            is_due = self._num_put % _COUNT_EVERY == 0
            self._num_put += 1
            if is_due or self._num_bytes + num_bytes > self._max_bytes:
                self._num_bytes = self._evict(num_bytes)
            if self._num_bytes + num_bytes > self._max_bytes:
                raise CacheFullError(
                    f"cache.disk: no room for case '{case_id}' of {num_bytes / 1e6:.1f} MB: entries in use take "
                    f"{self._num_bytes / 1e6:.1f} MB of the {self._max_bytes / 1e6:.1f} MB allowed in {self._folder}; "
                    "raise data.cache.folder_max_bytes"
                )
            self._num_bytes += num_bytes

    def _evict(self, num_bytes: int) -> int:
        """Removes entries until this much more fits, if possible; returns the bytes of the rest."""
        entries = self._files.oldest_first()
        total = sum(size for _, size in entries)
        if total + num_bytes <= self._max_bytes:
            return total
        in_use = self._uses.own() | self._uses.of_others()
        # A few more than needed where there are many, so that not every put has to scan all of them.
        aim = self._max_bytes - num_bytes - total // 32
        num_removed = 0
        for key, size in entries:
            if total <= aim:
                break
            if key not in in_use:
                with contextlib.suppress(OSError):
                    self._files.drop(key)
                    total -= size
                    num_removed += 1
        if num_removed:
            self._warn(
                "evicted",
                f"cache.disk: {self._folder} has reached {self._max_bytes / 1e9:.1f} GB (data.cache.folder_max_bytes): "
                "unused entries are now removed, least recently used first, and prepared again if needed",
            )
        return total

    def _again_if_replaced(self, key: str, work: Callable[[], _T]) -> _T:
        """What `work` returns; retries if another process replaced the entry with the same content meanwhile."""
        for is_last in (False, False, True):
            try:
                return work()
            except OSError as error:
                if error.errno != errno.ESTALE or is_last:
                    raise self._unreadable(key, error) from error
        raise AssertionError("the last time returns or raises")

    def _check(self, key: str, *, full: bool) -> None:
        found = self._read(key)
        if found is not None:
            check_arrays(*found, full=full)

    def _read(self, key: str) -> tuple[Header, Content] | None:
        content = self._files.open(checked_key(key))
        return None if content is None else (read_header(key, content), content)

    def _read_box(self, key: str, header: Header, content: Content, region: Region) -> tuple[Array, Array | None]:
        try:
            return read_box(header, content, region)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # The same voxels may have been put again meanwhile.
            found = self._again_if_replaced(key, lambda: self._read_box_now(key, region))
            if found is None:
                raise
            return found

    def _read_box_now(self, key: str, region: Region) -> tuple[Array, Array | None] | None:
        found = self._read(key)
        return None if found is None else read_box(*found, region)

    def _unreadable(self, key: str, error: OSError) -> CacheError:
        return CacheError(
            f"cache.disk: entry {self._files.path(key)} cannot be read ({error.strerror}); allow reading it "
            "or remove it"
        )

    def _drop_damaged(self, key: str) -> None:
        # Where we may only read, the damaged file stays, but it is never served.
        self._checked.discard(key)
        with contextlib.suppress(OSError):
            self._files.drop(key)

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
