"""One LMDB file: values by key, read without a copy inside a transaction. Knows nothing about entries.

A process may open a file only once and must not use it across a fork; `open_lmdb_file` ensures the first, and every
call checks the second. The map is as large as the disk. It only takes addresses, and so never has to grow, for which
LMDB would need all transactions of all threads to end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from voxelocity_observe.core.errors import CacheError, CacheFullError

LMDB_NAME = "entries.lmdb"
_LEAST_MAP_BYTES, _MOST_MAP_BYTES = 2**30, 2**44
"""Below the least, a process with a limit on its addresses is refused. The most is an eighth of what processes have."""
_MAX_READERS = 1024
"""Concurrent reads, over all processes."""
MAX_VALUE_BYTES = 2**32 - 1
"""LMDB's own limit."""

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
        settings = {"max_readers": _MAX_READERS, **options, "map_size": _map_bytes(path, options.get("map_size", 0))}
        check_lmdb_file(path)
        self.is_writable = not path.exists() or os.access(path, os.W_OK)
        if not self.is_writable:
            lock = path.with_name(f"{path.name}-lock")
            settings |= {"readonly": True, "create": False, "lock": os.access(lock, os.W_OK)}
        try:
            try:
                self._environment = self._lmdb.open(str(path), subdir=False, **settings)
            except self._lmdb.MemoryError:
                # `ulimit -v`, which is rare: the file then takes no more than this.
                settings["map_size"] = _LEAST_MAP_BYTES
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
            with self._transaction(write=True) as transaction:
                transaction.put(key.encode(), value)
        except self._lmdb.Error as error:
            free_bytes = shutil.disk_usage(self._path.parent).free
            # LMDB reports a partial write as "Input/output error".
            if self._says_full(error) or free_bytes < len(value):
                is_of_process = isinstance(error, self._lmdb.MapFullError)
                raise CacheFullError(
                    f"cache.lmdb: no space in {self._path}: it needs {len(value) / 1e6:.1f} MB, "
                    f"{free_bytes / 1e6:.1f} MB are free on the disk; "
                    + ("raise the limit on addresses (ulimit -v)" if is_of_process else "free some space")
                    + " or set data.cache.folder to another disk"
                ) from error
            raise CacheError(
                f"cache.lmdb: {self._path} cannot be written ({error}); set data.cache.folder to one you may write to"
            ) from error

    def drop(self, key: str) -> None:
        """Removes this value if there is one. Later values reuse its room; the file does not get smaller.

        Raises:
            CacheError: the file cannot be written.
        """
        try:
            with self._transaction(write=True) as transaction:
                transaction.delete(key.encode())
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

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Any]:
        if os.getpid() != self.pid:
            raise CacheError(
                f"cache.lmdb: {self._path} was opened before this process was forked, and LMDB does not support that; "
                "start processes by 'spawn', or set data.cache.tier to disk"
            )
        if write and not self.is_writable:
            raise CacheError(
                f"cache.lmdb: {self._path} is read-only; make it writable, or set data.cache.folder to a folder you "
                "may write to"
            )
        try:
            with self._environment.begin(write=write, buffers=True) as transaction:
                yield transaction
        except self._lmdb.Error as error:
            if write:
                raise
            raise CacheError(f"cache.lmdb: {self._path} cannot be read ({error})") from error

    def _says_full(self, error: Exception) -> bool:
        # The user's quota, or the limit on file size, which LMDB reports only by their texts.
        limits = (os.strerror(errno.EDQUOT), os.strerror(errno.EFBIG))
        full = (self._lmdb.DiskError, self._lmdb.MapFullError)
        return isinstance(error, full) or any(text in str(error) for text in limits)


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


def _map_bytes(path: Path, wanted_bytes: int) -> int:
    disk_bytes = shutil.disk_usage(path.parent).total
    return max(wanted_bytes, _LEAST_MAP_BYTES, min(disk_bytes, _MOST_MAP_BYTES)) // 2**16 * 2**16


def _import_lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise CacheError(
            'cache.lmdb: the package lmdb is not installed; pip install "voxelocity[lmdb]", or set data.cache.tier to '
            "disk"
        ) from error
    return lmdb
