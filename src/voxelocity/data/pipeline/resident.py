"""Cases in the device's memory, in front of the tier that keeps all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from voxelocity.core.batch import Draw
from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError, CacheFullError
from voxelocity.core.warn_once import WarnOnce
from voxelocity.data.cache.device import DeviceTier
from voxelocity.data.pipeline.prepared import PreparedCases
from voxelocity.data.pipeline.supply import Supply, WholeSupply

_MOST_OF_FREE = 0.5
"""Share of the device memory that is free when training begins: the first steps take the rest for the network."""


def open_resident_supply(
    prepared: PreparedCases,
    max_bytes: int,
    device: torch.device,
    *,
    free_bytes: Callable[[torch.device], int | None] | None = None,
) -> Supply:
    """Supplies cases from the device's memory; warns and uses only their tier if the device has no room.

    Args:
        prepared: the cases; its `warn` is called.
        max_bytes: device memory to take, at once.
        device: where batches are filled.
        free_bytes: free memory of a device, None where that sets no limit; by default what CUDA reports.
    """
    free = (free_bytes or _free_bytes)(device)
    try:
        if free is not None and max_bytes > _MOST_OF_FREE * free:
            raise CacheFullError(
                f"cache.device: {device} has {free / 1e9:.1f} GB free, and {max_bytes / 1e9:.1f} GB for prepared cases "
                "would leave less than half of that for the network; lower data.cache.device_max_bytes"
            )
        return ResidentSupply(prepared, DeviceTier(max_bytes, device))
    except CacheFullError as error:
        prepared.warn(f"{error}; continuing with cases copied from the tier behind it for each batch")
        return WholeSupply(prepared)


class ResidentSupply:
    """All cases, at any time. Each is copied to the device when it is first drawn, and stays.

    A case that does not fit there is supplied from its tier each time; once the device is full, so are all cases that
    are not there yet. Which cases are there does not change any batch. Safe to use from several threads.

    Args:
        prepared: the cases; its `warn` is called, once for each cause, when some are not copied.
        tier: used by this supply alone; its memory is freed with this object and the volumes it gave.
    """

    def __init__(self, prepared: PreparedCases, tier: DeviceTier) -> None:
        self._prepared = prepared
        self._tier = tier
        self._is_full = False
        self._refused: set[int] = set()
        self._warn = WarnOnce(prepared.warn)
        # A separate stream: uploads on the default stream would wait for the training's kernels.
        device = tier.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        """The volumes of these draws, in their order.

        Raises:
            ScanError: a case cannot be used.
        """
        return [self._volume(draw.case) for draw in draws]

    def close(self) -> None:
        """Nothing to end."""

    def _volume(self, case: int) -> StoredVolume:
        key = str(case)
        found = self._tier.get(key)
        if found is not None:
            return found
        if self._is_full or case in self._refused:
            return self._prepared[case]
        with self._tier.lock(key):
            found = self._tier.get(key)
            if found is not None:
                return found
            volume = self._prepared[case]
            return (self._tier.get(key) or volume) if self._bring(key, volume) else volume

    def _bring(self, key: str, volume: StoredVolume) -> bool:
        """Whether the volume is on the device now."""
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                self._tier.put(key, volume.load())
        except CacheError as error:
            self._is_full = self._is_full or type(error) is CacheFullError
            self._refused.add(int(key))
            rest = "cases that are not there yet" if self._is_full else "cases like this one"
            self._warn(type(error).__name__, f"{error}; {rest} are copied from the tier behind it for each batch")
            return False
        return True


def _free_bytes(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
