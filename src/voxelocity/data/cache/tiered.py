"""Memory in front of another tier: when memory runs out, the cache continues in that tier and the run continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.errors import CacheError, CacheFullError, OutputError
from voxelocity.core.volume import Volume
from voxelocity.core.warn_once import Warn, WarnOnce
from voxelocity.observe import available_memory_bytes, total_memory_bytes

_FLOOR_SHARE = 0.05
"""Share of total memory that the cache leaves free. Below it Linux reclaims pages while training waits."""
_LOOK_EVERY_S = 1.0
"""Querying the system takes 0.5 ms, getting a volume 0.01 ms."""


class FrontTier(Tier, Protocol):
    """A tier in memory that can be asked to become smaller."""

    def evict(self, num_bytes: int) -> list[tuple[str, Volume]]:
        """Drops the least recently used entries, at least this many bytes if there are that many; returns them."""
        ...

    def room_bytes(self, wanted_bytes: int = 0) -> int:
        """Bytes that can be put before other entries must go; recounts before it returns less than what is wanted."""
        ...


def memory_floor_bytes() -> int:
    """Free memory that the cache leaves to everything else."""
    return int(_FLOOR_SHARE * total_memory_bytes())


class TieredCache:
    """A memory tier that stops growing when memory runs low, and another tier that takes over.

    The cache checks free memory before each put and, during gets, once a second. Below the floor a new entry goes to
    the tier behind, and the least recently used entries move there until the floor is reached. Entries in the tier
    behind stay there: every case is used once an epoch, so bringing one back would only push out another. Without a
    tier behind, the cache stops growing and evicted entries are dropped.

    The memory of an evicted entry is freed when nothing holds its volume any more. Where several processes share the
    tier in front, each may evict when memory runs low, so more may go than needed; this only costs time.

    Safe to use from several threads, and from several processes if both tiers are.

    Args:
        front: in memory.
        behind: opens the other tier when it is first needed; None where there is none.
        behind_name: the name of the other tier in warnings.
        warn: called once for each cause with a text that says what happened and what it costs.
        floor_bytes: free memory that is left to others.
        free_bytes: memory that can still be taken.
        clock: seconds.
    """

    def __init__(
        self,
        front: FrontTier,
        behind: Callable[[], Tier] | None,
        *,
        behind_name: str = "",
        warn: Warn,
        floor_bytes: int,
        free_bytes: Callable[[], int] = available_memory_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._front = front
        self._open_behind = behind
        self._behind: Tier | None = None
        self._behind_name = behind_name
        self._warn = WarnOnce(warn)
        self._floor_bytes = floor_bytes
        self._free_bytes = free_bytes
        self._clock = clock
        self._next_look_s = clock()
        self._lock = threading.Lock()
        self._relieving = threading.Lock()

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, from the tier that holds it, or None.

        Raises:
            CacheError: an entry is there and cannot be opened.
        """
        if self._clock() >= self._next_look_s:
            self._relieve()
        volume = self._front.get(key)
        return volume if volume is not None or self._behind is None else self._behind.get(key)

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume in front if there is room, else behind.

        Raises:
            EntryTooLargeError: this volume can never be kept.
            CacheFullError: there is no space in either tier, or memory runs low and nothing is behind.
            CacheError: it cannot be written.
        """
        if not self._has_memory_for(volume):
            self._put_behind(key, volume)
            return
        try:
            self._front.put(key, volume)
        except CacheFullError as error:
            if self._open_behind is None:
                raise
            self._warn("full", f"{error}; {self._goes_on()}")
            self._put_behind(key, volume)

    def drop(self, key: str) -> None:
        """Removes this entry from both tiers. Volumes already handed out stay valid."""
        self._front.drop(key)
        if self._behind is not None:
            self._behind.drop(key)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all who share the tier in front, the right to make this entry."""
        return self._front.lock(key)

    def bytes_used(self) -> int:
        """Bytes that the entries take in both tiers."""
        return self._front.bytes_used() + (0 if self._behind is None else self._behind.bytes_used())

    def _has_memory_for(self, volume: Volume) -> bool:
        """Whether the tier in front has room for the volume; warns if it does not."""
        free_bytes = self._free_bytes()
        if free_bytes - volume.num_bytes < self._floor_bytes:
            self._relieve()
            low = f"cache: memory runs low: {self._low_text(free_bytes)}"
            if self._open_behind is None:
                raise CacheFullError(
                    f"{low}, so case '{volume.case_id}' is not kept; free some, or name a cache folder"
                )
            self._warn("low", f"{low}; {self._goes_on()}")
            return False
        if self._open_behind is None or volume.num_bytes <= self._front.room_bytes(volume.num_bytes):
            return True
        size = f"{volume.num_bytes / 1e6:.1f} MB"
        self._warn(
            "full", f"cache: the memory tier has no room for case '{volume.case_id}' ({size}); {self._goes_on()}"
        )
        return False

    def _relieve(self) -> None:
        """Moves entries out of memory while less than the floor is free. One thread does it while others continue."""
        if not self._relieving.acquire(blocking=False):
            return
        try:
            self._next_look_s = self._clock() + _LOOK_EVERY_S
            free_bytes = self._free_bytes()
            if free_bytes >= self._floor_bytes:
                return
            evicted = self._front.evict(self._floor_bytes - free_bytes)
            if not evicted and self._open_behind is None:
                return
            self._keep_evicted(evicted, free_bytes)
        finally:
            self._relieving.release()

    def _keep_evicted(self, evicted: list[tuple[str, Volume]], free_bytes: int) -> None:
        num_bytes = sum(volume.num_bytes for _, volume in evicted)
        went = f"cache: memory runs low: {self._low_text(free_bytes)}; {num_bytes / 1e6:.1f} MB of prepared cases"
        if self._open_behind is None:
            self._warn("evict", f"{went} were dropped and are prepared again when they are used")
            return
        try:
            # Opened even when nothing was evicted here: another process may have moved entries there.
            self._opened()
            for key, volume in evicted:
                self._put_behind(key, volume)
        except CacheError as error:
            self._warn("evict", f"{went} were dropped and are prepared again when they are used: {error}")
        else:
            if evicted:
                self._warn("evict", f"{went} moved to {self._behind_name}, and more may follow")

    def _put_behind(self, key: str, volume: Volume) -> None:
        self._opened().put(key, volume)

    def _opened(self) -> Tier:
        with self._lock:
            if self._behind is None:
                assert self._open_behind is not None
                try:
                    self._behind = self._open_behind()
                except OutputError as error:
                    # The run started without this tier, so failing to open it must not end the run now.
                    raise CacheError(str(error)) from error
            return self._behind

    def _goes_on(self) -> str:
        return f"the cache continues in {self._behind_name}, which is slower to read"

    def _low_text(self, free_bytes: int) -> str:
        return f"{free_bytes / 1e6:.0f} MB are free and {self._floor_bytes / 1e6:.0f} MB are reserved for other use"
