"""The shared memory tier: one copy of each prepared volume for all processes of a user on this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxelocity.core.volume import Volume
from voxelocity.data.cache.entry import DamagedEntryError, check_arrays, checked_key, pack, read_header
from voxelocity.data.cache.entry_files import (
    SUFFIX,
    TEMP_SUFFIX,
    map_file,
    oldest_first,
    remove_if_abandoned,
    write_all,
)
from voxelocity.data.cache.locks import PassingLocks, Uses
from voxelocity.data.cache.shared_folder import SharedFolder, free_bytes_in, total_bytes_of
from voxelocity.data.cache.stored import mapped_volume
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError, OutputError
from voxelocity_observe.core.warn_once import Warn

_BUDGET = "budget"
_MAX_MAPPED = 16_384
"""Entries that a process keeps mapped. Linux allows it 65,530 mappings; beyond these every allocation may fail."""


class SharedMemoryTier:
    """Volumes as files in main memory, mapped read-only by every process; the least recently used one goes first.

    Safe to use from several threads and processes at once, including forked ones. An entry holds the same bytes as in
    the disk tier and appears whole or not at all. Keys identify content, so unrelated processes may share entries. A
    dropped entry stays valid while its volume is held; this process unmaps it when it next gets that key or puts
    another. The last tier that uses the folder removes it; after a `kill -9`, the next one to open it does.

    Args:
        folder: of this tier, in a file system in main memory (`memory_folder`).
        max_bytes: budget for the bytes of all entries of all processes; each process applies its own.
        warn: called once if waiting for another process timed out.

    Raises:
        OutputError: the folder cannot be made or written, or belongs to another user.
    """

    def __init__(self, folder: Path, max_bytes: int, *, warn: Warn | None = None) -> None:
        self._max_bytes = max_bytes
        self._mapped: dict[str, tuple[int, Volume]] = {}
        self._num_removed_seen = 0
        self._lock = threading.Lock()
        try:
            self._folder = SharedFolder(Path(folder).absolute())
        except OSError as error:
            raise OutputError(
                f"cache.shared: folder {folder} cannot be used ({error.strerror or error}); remove it, or choose "
                "the disk tier"
            ) from error
        self._locks = PassingLocks(self._folder.path, warn=warn)
        self._uses = Uses(self._folder.path)

    def get(self, key: str) -> Volume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped).

        Raises:
            CacheError: the entry is there and cannot be opened.
        """
        path = self._path(key)
        try:
            inode = _touch(path)
            with self._lock:
                known, volume = self._mapped.get(key, (None, None))
            self._uses.note(key)
            if volume is not None and known == inode:
                return volume
            volume = _volume_of(key, path)
        except FileNotFoundError:
            with self._lock:
                self._mapped.pop(key, None)
            return None
        except DamagedEntryError:
            with self._ledger() as ledger:
                self._remove(ledger, path)
            return None
        except OSError as error:
            raise CacheError(
                f"cache.shared: entry {path} cannot be read ({error.strerror}); remove it or choose the disk tier"
            ) from error
        with self._lock:
            self._mapped[key] = (inode, volume)
            while len(self._mapped) > _MAX_MAPPED:
                del self._mapped[next(iter(self._mapped))]
        return volume

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume, dropping others where the budget requires it.

        Raises:
            EntryTooLargeError: the volume alone is larger than the budget or the file system; nothing is dropped.
            CacheFullError: the file system has less free space than the budget allows; nothing is dropped for it.
            CacheError: it cannot be written for another reason.
        """
        path = self._path(key)
        parts = pack(key, volume, format="raw")
        size = sum(len(part) for part in parts)
        try:
            try:
                self._put(path, parts, size, volume.case_id)
            except FileNotFoundError:
                # The folder was removed meanwhile; make it again.
                self._put(path, parts, size, volume.case_id)
            self._uses.note(key)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                raise self._full(volume.case_id, size) from error
            raise CacheError(
                f"cache.shared: case '{volume.case_id}' cannot be written to {self._folder.path} ({error.strerror}); "
                "choose the disk tier"
            ) from error

    def drop(self, key: str) -> None:
        """Drops this entry if there is one; the last tier that uses it removes it.

        Volumes already handed out stay valid.
        """
        path = self._path(key)
        self._uses.withdraw(key)
        with self._ledger() as ledger:
            if key in self._uses.in_use():
                with self._lock:
                    self._mapped.pop(key, None)
            else:
                self._remove(ledger, path)
            self._forget_dropped(ledger)

    def evict(self, num_bytes: int) -> list[tuple[str, Volume]]:
        evicted = []
        with self._ledger() as ledger:
            for path, size in oldest_first(self._folder.path):
                if num_bytes <= 0:
                    break
                key = path.name.removesuffix(SUFFIX)
                with contextlib.suppress(DamagedEntryError):
                    evicted.append((key, _volume_of(key, path)))
                self._remove(ledger, path)
                num_bytes -= size
            self._forget_dropped(ledger)
        return evicted

    def room_bytes(self, wanted_bytes: int = 0) -> int:
        # Before it returns too little, it frees what killed writers had reserved.
        with self._ledger() as ledger:
            if self._max_bytes - ledger.used_bytes < wanted_bytes:
                self._recount(ledger)
            return max(0, min(self._max_bytes - ledger.used_bytes, ledger.free_bytes))

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Holds, among all threads and processes on this folder, the right to make this entry.

        It saves double work and guards nothing else. If it is not available, or a stopped process holds it, the caller
        proceeds without it.
        """
        checked_key(key)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self._folder.stay()
                stack.enter_context(self._locks.hold(key))
            yield

    def close(self) -> None:
        """Ends the use of the folder; the last user removes it. Volumes already handed out stay valid."""
        self._mapped.clear()
        self._folder.leave()

    def _path(self, key: str) -> Path:
        return self._folder.path / f"{checked_key(key)}{SUFFIX}"

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[_Ledger]:
        with contextlib.ExitStack() as stack:
            try:
                self._folder.stay()
                descriptor = stack.enter_context(self._folder.lock(_BUDGET))
            except FileNotFoundError:
                # The folder was removed between the two calls.
                self._folder.stay()
                descriptor = stack.enter_context(self._folder.lock(_BUDGET))
            yield _Ledger(descriptor)

    def _put(self, path: Path, parts: Sequence[memoryview], size: int, case_id: str) -> None:
        self._folder.stay()
        most = min(self._max_bytes, total_bytes_of(self._folder.path))
        if size > most:
            raise EntryTooLargeError(
                f"cache.shared: case '{case_id}' takes {size / 1e6:.1f} MB, at most {most / 1e6:.1f} MB fit into "
                f"{self._folder.path}; raise data.cache.max_bytes or the size of that file system, or choose the disk "
                "tier"
            )
        with self._ledger() as ledger:
            self._remove(ledger, path)
            self._make_room(ledger, size)
            if size > ledger.free_bytes:
                raise self._full(case_id, size)
            descriptor, temp = self._open_temp(path, size)
            ledger.used_bytes += size
            self._forget_dropped(ledger)
        try:
            for part in parts:
                write_all(descriptor, part)
            # Under the lock: otherwise a process that counts the files meanwhile could miss this one under both names.
            with self._ledger() as ledger:
                ledger.used_bytes -= _size_of(path)
                os.replace(temp, path)
        except BaseException:
            with self._ledger() as ledger:
                ledger.remove(temp)
            raise
        finally:
            os.close(descriptor)

    def _make_room(self, ledger: _Ledger, size: int) -> None:
        if ledger.used_bytes + size <= self._max_bytes:
            return
        entries = self._recount(ledger)
        # A few more than needed where there are many, so that not every put has to scan all of them.
        spare = len(entries) // 32
        for path, _ in entries:
            if ledger.used_bytes + size <= self._max_bytes:
                if spare == 0:
                    return
                spare -= 1
            self._remove(ledger, path)

    def _recount(self, ledger: _Ledger) -> list[tuple[Path, int]]:
        """Counts every file, without what killed writers had reserved; returns the least recently used entry first."""
        for temp in self._folder.path.glob(f"*{TEMP_SUFFIX}"):
            remove_if_abandoned(temp)
        entries = oldest_first(self._folder.path)
        writing = sum(_size_of(temp) for temp in self._folder.path.glob(f"*{TEMP_SUFFIX}"))
        ledger.used_bytes = writing + sum(held for _, held in entries)
        return entries

    def _open_temp(self, path: Path, size: int) -> tuple[int, Path]:
        temp = path.parent / f"{path.stem}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # The lock lives as long as its writer, so that others can tell when the file will never be finished.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.truncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            temp.unlink()
            raise
        return descriptor, temp

    def _remove(self, ledger: _Ledger, path: Path) -> None:
        """Removes an entry and this process's mapping of it. Other processes notice by the count."""
        with self._lock:
            has_seen_all = self._num_removed_seen == ledger.num_removed
            ledger.remove(path)
            self._mapped.pop(path.name.removesuffix(SUFFIX), None)
            if has_seen_all:
                self._num_removed_seen = ledger.num_removed

    def _forget_dropped(self, ledger: _Ledger) -> None:
        """Unmaps entries that others dropped: until then they take memory."""
        with self._lock:
            # Checking each takes a while, so a thirty-second of them may stay a little longer.
            if ledger.num_removed - self._num_removed_seen <= len(self._mapped) // 32:
                return
            self._num_removed_seen = ledger.num_removed
            for key in [key for key in self._mapped if not self._path(key).exists()]:
                del self._mapped[key]

    def _full(self, case_id: str, size: int) -> CacheFullError:
        free_bytes = free_bytes_in(self._folder.path)
        return CacheFullError(
            f"cache.shared: no space for case '{case_id}' in {self._folder.path}: it needs {size / 1e6:.1f} MB, "
            f"{free_bytes / 1e6:.1f} MB are free; enlarge that file system (docker run --shm-size) or choose the "
            "disk tier"
        )


class _Ledger:
    """Two numbers in the budget's lock file, read and changed while the lock is held.

    The bytes of all entries, including those being written, and how many files were removed since the folder was made.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def used_bytes(self) -> int:
        return self._number(0)

    @used_bytes.setter
    def used_bytes(self, used_bytes: int) -> None:
        os.pwrite(self._descriptor, max(0, used_bytes).to_bytes(8, "little"), 0)

    @property
    def free_bytes(self) -> int:
        """Of the file system, even if the folder is gone by now."""
        return free_bytes_in(self._descriptor)

    @property
    def num_removed(self) -> int:
        return self._number(8)

    def remove(self, path: Path) -> None:
        """Unlinks the file, if it is there, and counts its bytes as free."""
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
            self.used_bytes -= size
            os.pwrite(self._descriptor, (self.num_removed + 1).to_bytes(8, "little"), 8)

    def _number(self, offset: int) -> int:
        return int.from_bytes(os.pread(self._descriptor, 8, offset), "little")


def _volume_of(key: str, path: Path) -> Volume:
    content = map_file(path)
    header = read_header(key, content)
    check_arrays(header, content, full=False)
    return mapped_volume(header, content)


def _touch(path: Path) -> int:
    """Marks the file as used now; returns its inode."""
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns))
    return path.stat().st_ino


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
