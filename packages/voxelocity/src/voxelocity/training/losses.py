"""Losses on their way to the host. The device is never left without work: the host stays a few steps ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

# Enough to hide the host. More would hold more batches in memory until the device is done with them.
_MOST_AHEAD = 4


class AskedLosses:
    """The losses of some steps and whether all weights are finite, copied to the host behind the work queued so far.

    Args:
        losses: scalars on the device.
        is_finite: a scalar on the device.
    """

    def __init__(self, losses: Sequence[torch.Tensor], is_finite: torch.Tensor) -> None:
        packed = torch.cat([torch.stack([*losses]).float(), is_finite.float().reshape(1)])
        device = packed.device
        self._event: Any = None
        if packed.is_cuda:
            values = torch.empty(packed.shape, pin_memory=True)
            packed = values.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        self._values = packed

    def read(self) -> tuple[list[float], bool]:
        """The losses, and whether all weights were finite. Waits until the device has passed these steps."""
        if self._event is not None:
            self._event.synchronize()
        *losses, is_finite = self._values.tolist()
        return losses, is_finite > 0.0


class RunAhead:
    """Lets the host be at most four steps ahead of a CUDA device; does nothing for others.

    A replayed step takes the host a tenth of the device's time. Without a bound, it would queue steps, and keep their
    batches in memory, until a window of losses is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[Any] = deque()
        self._free: list[Any] = []

    def wait_for_earlier(self) -> None:
        """To be called after each step: waits, without holding Python's lock, for the step before the last four."""
        if self._device.type != "cuda":
            return
        event = self._free.pop() if self._free else torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append(event)
        if len(self._queued) > _MOST_AHEAD:
            oldest = self._queued.popleft()
            oldest.synchronize()
            self._free.append(oldest)
