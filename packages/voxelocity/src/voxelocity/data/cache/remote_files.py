"""Entries on an object store, with a folder of this machine in front: each is brought there when it is first read."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from voxelocity.core.remote import open_file_system, retry
from voxelocity.data.cache.entry_files import SUFFIX, EntryFiles, FileBytes
from voxelocity.data.cache.locks import ThreadLocks

_T = TypeVar("_T")
# Then a case is prepared again, which needs no connection.
_MOST_TRYING_S = 300.0


class RemoteEntryFiles(EntryFiles):
    """As `EntryFiles`, on a server that all machines reach: an entry that one has written is there for all.

    Entries are verified like those of a folder, by the checksums in their headers, when they are first opened.

    Args:
        folder: on a disk of this machine; exists.
        url: of a folder on the server, such as s3://bucket/cache.
        make_room: called before this many bytes are brought here.

    Raises:
        InputError: the library for the protocol is missing, or the URL holds a password.
    """

    def __init__(self, folder: Path, url: str, *, make_room: Callable[[int], None]) -> None:
        super().__init__(folder)
        self._make_room = make_room
        self._url, self._server, self._sleep = url.rstrip("/"), open_file_system(url), time.sleep
        self._locks = ThreadLocks()
        # After one wait in vain, each entry is tried once, as waiting for each would take hours.
        self._is_away = False

    def open(self, key: str) -> memoryview | FileBytes | None:
        with self._locks.hold(key):
            if not self.path(key).exists():
                with contextlib.suppress(FileNotFoundError):
                    self._fetch(key)
        return super().open(key)

    def write(self, key: str, parts: Sequence[memoryview]) -> None:
        super().write(key, parts)
        # Objects appear whole or not at all.
        self._retry(lambda: self._server.put_file(str(self.path(key)), self._remote(key)), self._remote(key))

    def drop(self, key: str) -> None:
        super().drop(key)
        with contextlib.suppress(FileNotFoundError):
            self._retry(lambda: self._server.rm_file(self._remote(key)), self._remote(key))

    def evict(self, key: str) -> None:
        super().drop(key)

    def _fetch(self, key: str) -> None:
        remote = self._remote(key)
        # Another machine may have put it since the last look.
        self._server.invalidate_cache()
        num_bytes = self._retry(lambda: int(self._server.info(remote)["size"]), remote)
        self._make_room(num_bytes)
        descriptor, temp = self._open_temp(key)

        def attempt() -> None:
            self._server.get_file(remote, str(temp))
            if temp.stat().st_size != num_bytes:
                raise ConnectionError(f"{temp.stat().st_size} of {num_bytes} bytes arrived")

        try:
            self._retry(attempt, remote)
            os.replace(temp, self.path(key))
        finally:
            temp.unlink(missing_ok=True)
            os.close(descriptor)

    def _remote(self, key: str) -> str:
        return f"{self._url}/{key}{SUFFIX}"

    def _retry(self, attempt: Callable[[], _T], what: str) -> _T:
        try:
            most_s = 0.0 if self._is_away else _MOST_TRYING_S
            found = retry(attempt, what=f"cache: {what}", most_s=most_s, sleep=self._sleep)
            self._is_away = False
            return found
        except (ConnectionError, PermissionError) as error:
            self._is_away = isinstance(error, ConnectionError)
            number = errno.EACCES if isinstance(error, PermissionError) else errno.EIO
            raise OSError(number, str(error), what) from error
