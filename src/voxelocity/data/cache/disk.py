"""The disk tier: one immutable, memory-mapped file per prepared volume, shared by processes and kept across runs."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError, CacheFullError
from voxelocity.core.volume import Volume
from voxelocity.data.cache.entry import DamagedEntryError, Format, Header, check_foreground, pack, read_header
from voxelocity.data.cache.entry_files import EntryFiles
from voxelocity.data.cache.folder_error import NO_SPACE, folder_error
from voxelocity.data.cache.key import checked_key
from voxelocity.data.cache.locks import KeyLocks
from voxelocity.data.cache.stored import EntryVolume, mapped_volume


class DiskTier:
    """Volumes as files in a folder. Safe to use from several threads and processes at once.

    An entry appears whole or not at all. Arrays are stored in C order, whatever their order in memory. Of a "raw" entry
    they come back as read-only views of the mapped file: nothing is read before it is used. Of a "blosc2" entry each
    read decodes the chunks it touches. No file stays open. Sequences in a trace come back as lists.

    Args:
        folder: made where it is missing. What writers that died left behind in it is removed.
        format: of the entries that are put; entries of either format are read.

    Raises:
        OutputError: the folder cannot be made or written.
        CacheFullError: it cannot be made, as the disk is full.
    """

    def __init__(self, folder: Path, *, format: Format = "raw") -> None:
        self._folder = Path(folder).absolute()
        self._format = format
        self._files = EntryFiles(self._folder)
        self._checked: set[str] = set()
        try:
            self._locks = KeyLocks(self._folder)
            self._files.remove_abandoned()
        except OSError as error:
            raise folder_error("cache.disk", self._folder, error) from error

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped).

        Finds cut-off and mangled files by their length and header, and changed foreground indices when an entry is
        first opened; only `verify` reads every voxel.

        Raises:
            CacheError: the file is there and cannot be opened.
        """
        drop = functools.partial(self._drop_damaged, key)
        try:
            found = self._read(key)
            if found is not None and key not in self._checked:
                check_foreground(*found)
                self._checked.add(key)
        except DamagedEntryError:
            drop()
            return None
        if found is None:
            return None
        header, content = found
        if header.format == "raw":
            return mapped_volume(header, content)
        return EntryVolume(
            case_id=header.case_id,
            header=header,
            foreground=header.foreground(header.tensors(content)),
            borrow=lambda: nullcontext((header, content)),
            on_damage=drop,
        )

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume; it survives a loss of power once this returns.

        In the format "raw" an array that is not in C order is copied for the time of the call.

        Raises:
            CacheFullError: there is no space, or no quota, for it; nothing is left behind.
            CacheError: it cannot be written for another reason; nothing is left behind.
        """
        checked_key(key)
        parts = pack(key, volume, format=self._format)
        try:
            self._files.write(key, parts)
        except OSError as error:
            raise self._error_of(error, volume.case_id, sum(len(part) for part in parts)) from error

    def drop(self, key: str) -> None:
        """Removes this entry if there is one, damaged or not. Volumes already handed out stay valid.

        Raises:
            OSError: it is there and cannot be removed.
        """
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
                found = self._read(key)
            except DamagedEntryError:
                yield key
                continue
            if found is not None and found[0].first_damage(found[1], full=full) is not None:
                yield key

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry.

        It saves double work and guards nothing else: reading and writing are safe without it. Where it cannot be had
        (a full disk, a folder of somebody else's, a file system without locks) it is therefore done without.
        """
        return self._locks.hold(checked_key(key))

    def _read(self, key: str) -> tuple[Header, memoryview] | None:
        try:
            content = self._files.map(checked_key(key))
        except OSError as error:
            raise CacheError(
                f"cache.disk: entry {self._files.path(key)} cannot be read ({error.strerror}); allow reading it or "
                "remove it"
            ) from error
        return None if content is None else (read_header(key, content), content)

    def _drop_damaged(self, key: str) -> None:
        # Its lock stays, as whoever found it may be about to make it again. Where we may only read, the damaged file
        # stays; it is never served all the same.
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
