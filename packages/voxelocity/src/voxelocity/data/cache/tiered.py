"""The places where prepared volumes are kept. This module alone decides what happens when one of them fails.

The run continues in the next place, and each cause is reported once:

- memory is full or runs low: entries go to the files behind it; without files, the least recently used are dropped
- the disk is full: entries go to memory, up to `data.cache.max_bytes`
- no place has room, or one cannot be written: nothing more is kept, and cases are prepared at each use
- an entry cannot be read: its case is prepared again
- the device is full: its cases are used from the places behind it
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.volume import Volume
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError, OutputError
from voxelocity_observe.core.host import available_memory_bytes, total_memory_bytes
from voxelocity_observe.core.warn_once import Warn, WarnOnce

_FLOOR_SHARE = 0.05
"""Share of total memory that the cache leaves free. Below it Linux reclaims pages while training waits."""
_LOOK_EVERY_S = 1.0
"""Querying the system takes 0.5 ms, getting a volume 0.01 ms."""
_AT_EACH_USE = "are prepared again each time they are used"
_IN_MEMORY = "continuing in memory, up to data.cache.max_bytes; the next run prepares those cases again"


@runtime_checkable
class MemoryPlace(Tier, Protocol):
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
    """Up to two tiers, one in memory and one of files, either of them first. It may fail without harm.

    An entry is offered to the first tier, then to the second, and stays where it is: every case is used once an epoch,
    so bringing one back to memory would only push out another. The cache checks free memory before it puts an entry
    there and, during gets, once a second. Below the floor nothing is added to memory, and its least recently used
    entries leave until the floor is reached; their memory is free when nothing holds their volumes any more. Where
    several processes share that tier, each may evict when memory runs low, so more may go than needed; this only costs
    time.

    Safe to use from several threads, and from several processes if both tiers are.

    Args:
        first: opens the tier that is asked first; None where nothing is kept.
        second: opens the other tier when it is first needed; None where there is none.
        second_name: of a second tier of files, in warnings; "" if it is in memory.
        warn: called once for each cause with a text that says what happened and what it costs.
        floor_bytes: free memory that is left to others.
        free_bytes: memory that can still be taken.
        clock: seconds.

    Attributes:
        warn: as given, once for each cause.

    Raises:
        OutputError: the folder of the first tier cannot be used.
    """

    def __init__(
        self,
        first: Callable[[], Tier] | None,
        second: Callable[[], Tier] | None = None,
        *,
        second_name: str = "",
        warn: Warn,
        floor_bytes: int = 0,
        free_bytes: Callable[[], int] = available_memory_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.warn = WarnOnce(warn)
        self._second_name = second_name
        self._floor_bytes = floor_bytes
        self._free_bytes = free_bytes
        self._clock = clock
        self._next_look_s = clock()
        self._open_second = second
        self._tiers: tuple[Tier, ...] = ()
        self._memory: MemoryPlace | None = None
        self._opening = threading.Lock()
        self._relieving = threading.Lock()
        if first is not None:
            self._open_first(first)
        self._is_writable = bool(self._tiers)

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, from the tier that holds it, or None."""
        try:
            if self._memory is not None and self._clock() >= self._next_look_s:
                self._relieve(self._memory)
            for tier in self._tiers:
                volume = tier.get(key)
                if volume is not None:
                    return volume
        except CacheError as error:
            self.warn("get", f"{error}; cases that cannot be read {_AT_EACH_USE}")
        return None

    def put(self, key: str, volume: Volume) -> bool:
        """Keeps the volume where there is room; returns whether it was kept.

        After a failure that would affect every volume, nothing more is written until an entry is dropped.
        """
        if not self._is_writable:
            return False
        try:
            self._put(key, volume)
        except EntryTooLargeError as error:
            self.warn("large", f"{error}; cases as large as this {_AT_EACH_USE}")
            return False
        except CacheError as error:
            self._is_writable = False
            self.warn("put", f"{error}; continuing without more: cases not in the cache {_AT_EACH_USE}")
            return False
        return True

    def drop(self, key: str) -> None:
        """Removes this entry where that is possible. Volumes already handed out stay valid."""
        for tier in self._tiers:
            # This only makes room; if an entry cannot be removed, the run continues.
            with contextlib.suppress(OSError, CacheError):
                tier.drop(key)
                # Others may fit now; a rotating cache would otherwise keep nothing more for the rest of the run.
                self._is_writable = True

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds, among all who share the first tier, the right to make this entry."""
        return self._tiers[0].lock(key) if self._tiers else nullcontext()

    @property
    def _has_files_behind(self) -> bool:
        return self._open_second is not None and self._memory is self._tiers[0]

    def _put(self, key: str, volume: Volume) -> None:
        first = self._tiers[0]
        refusal = self._refusal_of_memory(volume) if first is self._memory else None
        if refusal is None:
            try:
                first.put(key, volume)
                return
            except CacheFullError as error:
                is_final = isinstance(error, EntryTooLargeError) and first is not self._memory
                if self._open_second is None or is_final:
                    raise
                refusal = "full", str(error)
        cause, reason = refusal
        if self._open_second is None:
            raise _not_kept(reason, volume)
        self.warn(cause, f"{reason}; {self._continues()}")
        second = self._add_second()
        if second is self._memory and (low := self._refusal_of_memory(volume)) is not None:
            raise _not_kept(low[1], volume)
        second.put(key, volume)

    def _refusal_of_memory(self, volume: Volume) -> tuple[str, str] | None:
        """Why memory should not take the volume, as a cause and a text; None if it may."""
        assert self._memory is not None
        free_bytes = self._free_bytes()
        if free_bytes - volume.num_bytes < self._floor_bytes:
            self._relieve(self._memory)
            return "low", f"cache: memory runs low: {self._low_text(free_bytes)}"
        if not self._has_files_behind or volume.num_bytes <= self._memory.room_bytes(volume.num_bytes):
            return None
        size = f"{volume.num_bytes / 1e6:.1f} MB"
        return "full", f"cache: the memory tier has no space for case '{volume.case_id}' ({size})"

    def _relieve(self, memory: MemoryPlace) -> None:
        """Moves entries out of memory while less than the floor is free. One thread does it while others continue."""
        if not self._relieving.acquire(blocking=False):
            return
        try:
            self._next_look_s = self._clock() + _LOOK_EVERY_S
            free_bytes = self._free_bytes()
            if free_bytes >= self._floor_bytes:
                return
            evicted = memory.evict(self._floor_bytes - free_bytes)
            if evicted or self._has_files_behind:
                self._keep_evicted(evicted, free_bytes)
        finally:
            self._relieving.release()

    def _keep_evicted(self, evicted: list[tuple[str, Volume]], free_bytes: int) -> None:
        num_bytes = sum(volume.num_bytes for _, volume in evicted)
        went = f"cache: memory runs low: {self._low_text(free_bytes)}; {num_bytes / 1e6:.1f} MB of prepared cases"
        if not self._has_files_behind:
            self.warn("evict", f"{went} were dropped and are prepared again when they are used")
            return
        try:
            # Opened even when nothing was evicted here: another process may have moved entries there.
            second = self._add_second()
            for key, volume in evicted:
                second.put(key, volume)
        except CacheError as error:
            self.warn("evict", f"{went} were dropped and are prepared again when they are used: {error}")
        else:
            if evicted:
                self.warn("evict", f"{went} moved to {self._second_name}, and more may follow")

    def _open_first(self, open_tier: Callable[[], Tier]) -> None:
        try:
            self._add(open_tier())
        except CacheFullError as error:
            if self._open_second is None:
                self.warn("full", f"{error}; continuing without a cache: cases {_AT_EACH_USE}")
                return
            self.warn("full", f"{error}; {self._continues()}")
            self._add(self._open_second())
            self._open_second = None

    def _add_second(self) -> Tier:
        with self._opening:
            if len(self._tiers) == 1:
                assert self._open_second is not None
                try:
                    self._add(self._open_second())
                except OutputError as error:
                    # The run started without this tier, so failing to open it must not end the run now.
                    raise CacheError(str(error)) from error
            return self._tiers[1]

    def _add(self, tier: Tier) -> None:
        self._tiers = (*self._tiers, tier)
        if isinstance(tier, MemoryPlace):
            self._memory = tier

    def _continues(self) -> str:
        if not self._second_name:
            return _IN_MEMORY
        return f"the cache continues in {self._second_name}, which is slower to read"

    def _low_text(self, free_bytes: int) -> str:
        return f"{free_bytes / 1e6:.0f} MB are free and {self._floor_bytes / 1e6:.0f} MB are reserved for other use"


def _not_kept(reason: str, volume: Volume) -> CacheFullError:
    return CacheFullError(f"{reason}, so case '{volume.case_id}' is not kept; free some, or set data.cache.folder")


_NEARLY_ALL = 0.8
"""Of the volumes: a limit with which fewer fit was not meant for all. Plans leave a margin over the expected size."""


class DeviceFront:
    """A device's memory in front of all other places: a volume is copied there when it is first taken, and stays.

    A volume that does not fit there is taken from behind each time; once the device is full, so are all that are not
    there yet. Safe to use from several threads.

    Args:
        tier: on the device; used by this object alone.
        num_volumes: that may be taken.
        warn: called once for each cause when some are not copied. Not if the device is full with far from all of them:
            then its limit was set for a part, as a plan does and says.
    """

    def __init__(self, tier: Tier, *, num_volumes: int, warn: Warn) -> None:
        self._tier = tier
        self._warn = WarnOnce(warn)
        self._num_volumes, self._num_kept = num_volumes, 0
        self._counting = threading.Lock()
        self._is_full = False
        self._refused: set[str] = set()

    def _count(self, change: int) -> int:
        """How many are kept, after this change."""
        with self._counting:
            self._num_kept += change
            return self._num_kept

    def take(self, key: str, from_behind: Callable[[], StoredVolume]) -> StoredVolume:
        """The volume under this key, on the device where it fits; `from_behind` gives it otherwise."""
        found = self._tier.get(key)
        if found is not None:
            return found
        if self._is_full or key in self._refused:
            return from_behind()
        with self._tier.lock(key):
            found = self._tier.get(key)
            if found is not None:
                return found
            volume = from_behind()
            self._bring(key, volume)
            return self._tier.get(key) or volume

    def _bring(self, key: str, volume: StoredVolume) -> None:
        try:
            # Before it is copied, as another thread may meanwhile find the device full.
            self._count(1)
            self._tier.put(key, volume.load())
        except CacheError as error:
            self._is_full = self._is_full or type(error) is CacheFullError
            self._refused.add(key)
            if self._count(-1) < _NEARLY_ALL * self._num_volumes and self._is_full:
                return
            rest = "cases that are not there yet" if self._is_full else "cases like this one"
            self._warn(type(error).__name__, f"{error}; {rest} are copied from the tier behind it for each batch")


def open_device_front(open_tier: Callable[[], Tier], num_volumes: int, warn: Warn) -> DeviceFront | None:
    """The front with the tier that this opens; None, and a warning, if the device has no room for it."""
    try:
        return DeviceFront(open_tier(), num_volumes=num_volumes, warn=warn)
    except CacheFullError as error:
        warn(f"{error}; continuing with cases copied from the tier behind it for each batch")
        return None
