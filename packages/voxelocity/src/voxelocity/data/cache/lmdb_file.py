"""One LMDB file: values by key, read without a copy inside a transaction, grown when full. Knows nothing about entries.

A process may open a file only once and must not use it across a fork; `open_lmdb_file` ensures the first, and every
call checks the second.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from voxelocity_observe.core.errors import CacheError, CacheFullError

LMDB_NAME = "entries.lmdb"
_START_BYTES = 2**30
_MAX_READERS = 1024
"""Concurrent reads, over all processes."""
MAX_VALUE_BYTES = 2**32 - 1
"""LMDB's own limit."""
_PAGE_SHARE = 1.02
"""Size of a value including the pages that lead to it, relative to the value."""

_META = struct.Struct("<16x II 16x I 92x QQ")
"""The fields we read of a page that describes the file: magic number, version, page size, last page, change."""
_MAGIC = 0xBEEFC0DE
_META_BYTES = 4096
"""Least distance between the two such pages: one page of the system that made the file."""

_opened: weakref.WeakValueDictionary[Path, LmdbFile] = weakref.WeakValueDictionary()
_opening = threading.Lock()


class DamagedFileError(CacheError):
    """The file is not an LMDB file, was cut short, or its pages do not fit together."""


def open_lmdb_file(path: Path, **options: Any) -> LmdbFile:
    """The file's one object in this process; the file is made where it is missing.

    Args:
        path: resolved, so that the same file has the same path.
        options: of `lmdb.open`, used when this call opens the file; an existing object keeps its own.

    Raises:
        DamagedFileError: this is not an LMDB file, or it was cut short.
        CacheError: the package `lmdb` is missing, or the file is of another version.
        OSError: it cannot be opened or made.
    """
    with _opening:
        found = _opened.get(path)
        if found is not None and found.pid != os.getpid():
            # A forked process must not use what its parent opened: it closes that and opens the file itself.
            found.close()
            found = None
        if found is None:
            found = _opened[path] = LmdbFile(path, **options)
        return found


class LmdbFile:
    """Values of one LMDB file. Safe to use from several threads, and from several processes that opened it themselves.

    A file that this user may only read is opened for reading. If its lock file is read-only too, writers do not see
    our reads, which are short: a value that another process drops meanwhile may then be read as other bytes.

    Args:
        path: of the file; next to it LMDB keeps one with `-lock` added to its name.
        options: of `lmdb.open`, instead of those that are set here.

    Attributes:
        pid: of the process that opened it.
        is_writable: whether it was opened for writing.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        self._lmdb = _import_lmdb()
        self._path = path
        self.pid = os.getpid()
        self._gate = _Gate()
        settings = {"map_size": _START_BYTES, "max_readers": _MAX_READERS, **options}
        check_lmdb_file(path)
        self.is_writable = not path.exists() or os.access(path, os.W_OK)
        if not self.is_writable:
            lock = path.with_name(f"{path.name}-lock")
            settings |= {"readonly": True, "create": False, "lock": os.access(lock, os.W_OK)}
        try:
            self._environment = self._lmdb.open(str(path), subdir=False, **settings)
        except self._lmdb.Error as error:
            if isinstance(error, (self._lmdb.InvalidError, self._lmdb.CorruptedError, self._lmdb.VersionMismatchError)):
                raise CacheError(
                    f"cache.lmdb: {path} is not an LMDB file of this version, or it is damaged ({error}); remove it"
                ) from error
            is_full = self._says_full(error)
            raise OSError(errno.ENOSPC if is_full else errno.EACCES, str(error), str(path)) from error
        if settings.get("lock", True):
            self._environment.reader_check()

    @contextlib.contextmanager
    def reading(self, key: str) -> Iterator[memoryview | None]:
        """Within the block, the bytes under this key, not copied, or None. They must not be used after it."""
        with self._transaction() as transaction:
            with self._name_damage():
                content = transaction.get(key.encode())
            yield content

    def write(self, key: str, parts: Sequence[memoryview]) -> None:
        """Puts these bytes under the key; they survive a loss of power once this returns. Copies them once.

        Raises:
            CacheFullError: the disk is full.
            CacheError: they cannot be written for another reason.
        """
        value = b"".join(parts)
        try:
            self._change(lambda transaction: transaction.put(key.encode(), value), len(value))
        except self._lmdb.Error as error:
            if self._means_full(error, len(value)):
                raise CacheFullError(self._full_text(len(value))) from error
            raise CacheError(
                f"cache.lmdb: {self._path} cannot be written ({error}); set data.cache.folder to one you may write to"
            ) from error

    def drop(self, key: str) -> None:
        """Removes this value if there is one. Later values reuse its room; the file does not get smaller.

        Raises:
            CacheError: the file cannot be written.
        """
        try:
            # Freed pages must be recorded, and a full map has no page for that.
            self._change(lambda transaction: transaction.delete(key.encode()), 0)
        except self._lmdb.Error as error:
            raise CacheError(f"cache.lmdb: {self._path} cannot be changed ({error})") from error

    def keys(self) -> list[str]:
        """All keys, sorted."""
        with self._transaction() as transaction, self._name_damage(), transaction.cursor() as cursor:
            return [bytes(key).decode() for key in cursor.iternext(keys=True, values=False)]

    @contextlib.contextmanager
    def _name_damage(self) -> Iterator[None]:
        """Turns what LMDB finds in damaged pages into an error that names the file."""
        try:
            yield
        except (self._lmdb.Error, UnicodeDecodeError) as error:
            raise DamagedFileError(f"cache.lmdb: {self._path} is damaged ({error}); remove it") from error

    def close(self) -> None:
        """Ends the use of the file by this process; objects that other processes opened are not affected."""
        self._environment.close()

    def info(self) -> dict[str, Any]:
        """LMDB's own facts: size of the map, last transaction, readers."""
        return dict(self._environment.info())

    def _change(self, change: Callable[[Any], object], num_bytes: int) -> None:
        """Makes the change in a transaction; first grows a full map, for a value of this many bytes."""
        self._check_writable()
        while True:
            try:
                with self._transaction(write=True) as transaction:
                    change(transaction)
                return
            except self._lmdb.MapFullError:
                self._grow(num_bytes)

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Any]:
        if os.getpid() != self.pid:
            raise CacheError(
                f"cache.lmdb: {self._path} was opened before this process was forked, and LMDB does not support that; "
                "start processes by 'spawn', or set data.cache.tier to disk"
            )
        while True:
            with self._gate.passing():
                try:
                    transaction = self._environment.begin(write=write, buffers=True)
                except self._lmdb.MapResizedError:
                    pass
                except self._lmdb.Error as error:
                    if write:
                        raise
                    raise CacheError(f"cache.lmdb: {self._path} cannot be read ({error})") from error
                else:
                    with transaction:
                        yield transaction
                    return
            # Another process made it larger.
            self._resize(0)

    def _check_writable(self) -> None:
        if not self.is_writable:
            raise CacheError(
                f"cache.lmdb: {self._path} is read-only; make it writable, or set data.cache.folder to a folder you "
                "may write to"
            )

    def _grow(self, num_bytes: int) -> None:
        """Makes room in the map for a value of this many bytes and doubles the map, so that this is rare."""
        if shutil.disk_usage(self._path.parent).free < num_bytes:
            raise CacheFullError(self._full_text(num_bytes))
        self._resize(2 * self._environment.info()["map_size"] + int(_PAGE_SHARE * num_bytes))

    def _means_full(self, error: Exception, num_bytes: int) -> bool:
        # LMDB reports a partial write as "Input/output error".
        return self._says_full(error) or shutil.disk_usage(self._path.parent).free < num_bytes

    def _says_full(self, error: Exception) -> bool:
        # The user's quota, or the limit on file size, which LMDB reports only by their texts.
        limits = (os.strerror(errno.EDQUOT), os.strerror(errno.EFBIG))
        return isinstance(error, self._lmdb.DiskError) or any(text in str(error) for text in limits)

    def _resize(self, map_bytes: int) -> None:
        # The map moves, so no transaction of this process may be open.
        with self._gate.alone():
            try:
                if map_bytes == 0 or map_bytes > self._environment.info()["map_size"]:
                    self._environment.set_mapsize(map_bytes)
            except (self._lmdb.Error, OverflowError) as error:
                raise CacheFullError(
                    f"cache.lmdb: {self._path} cannot be mapped at {map_bytes / 2**30:.1f} GiB ({error}); "
                    "set data.cache.tier to disk"
                ) from error

    def _full_text(self, num_bytes: int) -> str:
        free_bytes = shutil.disk_usage(self._path.parent).free
        return (
            f"cache.lmdb: no space in {self._path}: it needs {num_bytes / 1e6:.1f} MB, {free_bytes / 1e6:.1f} MB are "
            "free on the disk; free some space or set data.cache.folder to another disk"
        )


def check_lmdb_file(path: Path) -> None:
    """Passes if there is no such file, or if it holds all the pages that it declares.

    LMDB maps the file and may read any page: one beyond the end raises a signal that ends the process.

    Raises:
        DamagedFileError: it is not an LMDB file, or shorter than it declares.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = [_meta_at(file.read(_META_BYTES))]
            if found[0] is not None and found[0][2] > _META_BYTES:
                file.seek(found[0][2])
            found.append(_meta_at(file.read(_META_BYTES)))
            num_bytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return
    if num_bytes == 0:
        return  # made, and not yet written
    whole = [meta for meta in found if meta is not None]
    if len(whole) < 2:
        raise DamagedFileError(f"cache.lmdb: {path} is not an LMDB file of this version, or it is damaged; remove it")
    _, _, page_bytes, last_page, _ = max(whole, key=lambda meta: meta[-1])
    if num_bytes < (last_page + 1) * page_bytes:
        raise DamagedFileError(
            f"cache.lmdb: {path} was cut short: it has {num_bytes} bytes of {(last_page + 1) * page_bytes}; remove it"
        )


def remove_lmdb_file(path: Path) -> None:
    """Removes the file and LMDB's lock file next to it. Processes that have it open keep it until they end.

    Raises:
        OSError: it cannot be removed.
    """
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}-lock").unlink(missing_ok=True)


def _meta_at(page: bytes) -> tuple[int, ...] | None:
    """The fields of a page that describes the file; None if it does not."""
    if len(page) < _META.size:
        return None
    meta = _META.unpack_from(page)
    return meta if meta[0] == _MAGIC else None


class _Gate:
    """Lets many threads pass at once, or one run alone. One that waits to run alone blocks those that come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._num_waiting_alone = 0

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting_alone == 0)
            self._num_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._num_waiting_alone += 1
            try:
                self._changed.wait_for(lambda: self._num_inside == 0)
                yield
            finally:
                self._num_waiting_alone -= 1
                self._changed.notify_all()


def _import_lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise CacheError(
            'cache.lmdb: the package lmdb is not installed; pip install "voxelocity[lmdb]", or set data.cache.tier to '
            "disk"
        ) from error
    return lmdb
