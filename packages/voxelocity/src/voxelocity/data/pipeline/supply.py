"""Other ways to the volumes of a step's draws than `PreparedCases.take`: by a rotating cache, or in device memory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import torch

from voxelocity.core.batch import Draw
from voxelocity.core.contracts import StoredVolume
from voxelocity.data.cache import DeviceFront, RotatingCache, open_device_front
from voxelocity.data.cache.device import DeviceTier
from voxelocity.data.pipeline.prepared import PreparedCases
from voxelocity_observe.core.errors import CacheFullError

_MOST_OF_FREE = 0.5
"""Share of the device memory that is free when training begins: the first steps take the rest for the network."""


class ResidentSupply:
    """All cases, at any time, from the device's memory where they fit. Which are there does not change any batch.

    The memory is freed with this object and the volumes it gave.
    """

    def __init__(self, prepared: PreparedCases, front: DeviceFront) -> None:
        self._prepared = prepared
        self._front = front

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        get = self._prepared.__getitem__
        return [self._front.take(str(draw.case), functools.partial(get, draw.case)) for draw in draws]


def open_resident_supply(prepared: PreparedCases, max_bytes: int, device: torch.device) -> ResidentSupply | None:
    """Supplies cases from the device's memory; None, and a warning, if the device has no room.

    Args:
        prepared: the cases; its `warn` is called.
        max_bytes: to take, at once.
        device: where batches are filled.
    """

    def open_tier() -> DeviceTier:
        free = _free_bytes(device)
        if free is not None and max_bytes > _MOST_OF_FREE * free:
            raise CacheFullError(
                f"cache.device: {device} has {free / 1e9:.1f} GB free, and {max_bytes / 1e9:.1f} GB for prepared cases "
                "would leave less than half of that for the network; lower data.cache.device_max_bytes"
            )
        return DeviceTier(max_bytes, device)

    front = open_device_front(open_tier, len(prepared), prepared.warn)
    return None if front is None else ResidentSupply(prepared, front)


def _free_bytes(device: torch.device) -> int | None:
    """What CUDA reports; None on other devices, where it sets no limit."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


class RotatingSupply:
    """The cases of an epoch's window; those of the next are prepared meanwhile.

    The window moves on when every step that begins in an epoch was served or has failed; which step that is does not
    depend on the number of threads that take steps.

    Args:
        prepared: the cases.
        window: the indices of an epoch's cases.
        epoch_of: the epoch in which a step begins.
        start_step: the first step that will be taken.
        num_threads: they prepare cases ahead.
    """

    def __init__(
        self,
        prepared: PreparedCases,
        window: Callable[[int], Sequence[int]],
        *,
        epoch_of: Callable[[int], int],
        start_step: int,
        num_threads: int,
    ) -> None:
        self._epoch_of = epoch_of
        self._first_open = start_step
        self._served: set[int] = set()
        self._lock = threading.Lock()
        self._cache = RotatingCache(
            window,
            prepared.__getitem__,
            drop=prepared.drop,
            name=lambda case: prepared.refs[case].case_id,
            num_threads=num_threads,
        )
        self._cache.begin(epoch_of(start_step))

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        try:
            return [self._cache.take(draw.case) for draw in draws]
        finally:
            with self._lock:
                self._served.add(step)
                while self._first_open in self._served:
                    self._served.remove(self._first_open)
                    self._first_open += 1
            self._cache.begin(self._epoch_of(self._first_open))

    def close(self) -> None:
        """Ends the threads that prepare ahead, each after the case that it prepares now."""
        self._cache.close()
