"""The memory tier: prepared volumes, unchanged, in this process, within a byte budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import AbstractContextManager

import numpy as np

from voxelocity.core.volume import Array, Volume
from voxelocity.data.cache.locks import ThreadLocks
from voxelocity_observe.core.errors import EntryTooLargeError


class MemoryTier:
    """Volumes in memory; the least recently used one goes first when the budget is reached.

    Safe to use from several threads. Arrays are kept without a copy (unless they are part of a larger array, which
    would otherwise stay in memory unaccounted for) and handed out read-only: after `put`, do not write to a volume.

    Args:
        max_bytes: budget for `Volume.num_bytes` of all entries together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._volumes: OrderedDict[str, Volume] = OrderedDict()
        self._lock = threading.Lock()
        self._builders = ThreadLocks()

    def get(self, key: str) -> Volume | None:
        with self._lock:
            volume = self._volumes.get(key)
            if volume is not None:
                self._volumes.move_to_end(key)
            return volume

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume, dropping others where the budget requires it.

        Raises:
            EntryTooLargeError: the volume alone is larger than the budget; nothing is dropped.
        """
        size = volume.num_bytes
        if size > self._max_bytes:
            raise EntryTooLargeError(
                f"cache.memory: case '{volume.case_id}' takes {size / 1e6:.1f} MB, the whole budget is "
                f"{self._max_bytes / 1e6:.1f} MB; raise data.cache.max_bytes or choose the disk tier"
            )
        kept = volume.with_(
            image=_kept(volume.image),
            label=None if volume.label is None else _kept(volume.label),
            foreground={index: _kept(voxels) for index, voxels in volume.foreground.items()},
        )
        with self._lock:
            self._drop(key)
            while self._num_bytes + size > self._max_bytes:
                self._drop(next(iter(self._volumes)))
            self._volumes[key] = kept
            self._num_bytes += size

    def drop(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def evict(self, num_bytes: int) -> list[tuple[str, Volume]]:
        evicted = []
        with self._lock:
            while num_bytes > 0 and self._volumes:
                key, volume = next(iter(self._volumes.items()))
                self._drop(key)
                evicted.append((key, volume))
                num_bytes -= volume.num_bytes
        return evicted

    def room_bytes(self, wanted_bytes: int = 0) -> int:
        with self._lock:
            return self._max_bytes - self._num_bytes

    def lock(self, key: str) -> AbstractContextManager[None]:
        return self._builders.hold(key)

    def _drop(self, key: str) -> None:
        dropped = self._volumes.pop(key, None)
        if dropped is not None:
            self._num_bytes -= dropped.num_bytes


def _kept(array: Array) -> Array:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    kept = array.copy(order="K") if root.nbytes > array.nbytes else array.view()
    kept.flags.writeable = False
    return kept
