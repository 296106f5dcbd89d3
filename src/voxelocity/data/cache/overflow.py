"""Files in front of memory: when the disk is full, the cache continues in memory and the run continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.errors import CacheFullError, EntryTooLargeError
from voxelocity.core.volume import Volume
from voxelocity.core.warn_once import Warn

GOES_ON = "continuing in memory, up to data.cache.max_bytes; the next run prepares those cases again"


class OverflowingTier:
    """A tier of files, and a tier in memory for the entries that do not fit on its disk.

    Each entry is offered to the disk first, so space that becomes free there is used. Safe to use from several threads,
    and from several processes if both tiers are.

    Args:
        files: on a disk.
        spare: opens the tier in memory when it is first needed.
        warn: called once with a text that says that the disk is full and what it costs.
    """

    def __init__(self, files: Tier, spare: Callable[[], Tier], *, warn: Warn) -> None:
        self._files = files
        self._open_spare = spare
        self._spare: Tier | None = None
        self._warn = warn
        self._lock = threading.Lock()

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, from the tier that holds it, or None.

        Raises:
            CacheError: an entry is there and cannot be opened.
        """
        volume = self._files.get(key)
        return volume if volume is not None or self._spare is None else self._spare.get(key)

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume on the disk, or in memory if the disk is full.

        Raises:
            EntryTooLargeError: this volume can never be kept.
            CacheFullError: there is no space on the disk, and memory runs low.
            CacheError: it cannot be written.
        """
        try:
            self._files.put(key, volume)
        except EntryTooLargeError:
            raise
        except CacheFullError as error:
            self._spare_after(error).put(key, volume)

    def drop(self, key: str) -> None:
        """Removes this entry from both tiers."""
        self._files.drop(key)
        if self._spare is not None:
            self._spare.drop(key)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all who share the disk, the right to make this entry."""
        return self._files.lock(key)

    def bytes_used(self) -> int:
        """Bytes that the entries take in both tiers."""
        return self._files.bytes_used() + (0 if self._spare is None else self._spare.bytes_used())

    def _spare_after(self, error: CacheFullError) -> Tier:
        with self._lock:
            if self._spare is None:
                self._warn(f"{error}; {GOES_ON}")
                self._spare = self._open_spare()
            return self._spare
