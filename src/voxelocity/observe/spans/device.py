"""Marks on an accelerator's own time line. A mark is queued like any other work: making it waits for nothing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class DeviceClock(Protocol):
    """Makes marks on a device and gives the seconds between two of them, once the device has passed both."""

    def mark(self) -> Any:
        """A mark at the end of the work queued so far on the current stream; None if none can be made now."""
        ...

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Seconds of the device between two marks; None while it has not passed both. Never waits."""
        ...

    def release(self, mark: Any) -> None:
        """The mark is no longer needed and may be reused."""
        ...


class CudaClock:
    """CUDA events from a pool. Two marks count what lies between them on the device, including work it waited for.

    Safe to use from several threads.

    Args:
        device: whose current stream is marked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: deque[Any] = deque()

    def mark(self) -> Any:
        """An event on the current stream; None while a CUDA graph is captured, which would take it in."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return None
        try:
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Seconds between two events, exact to about half a microsecond; None while one of them is still queued."""
        if not (end.query() and begin.query()):
            return None
        return float(begin.elapsed_time(end)) / 1000.0

    def release(self, mark: Any) -> None:
        """The event goes back to the pool."""
        self._free.append(mark)


def device_clock(device: torch.device | str) -> DeviceClock | None:
    """The clock of a device, for "cuda" of the calling thread's; None if the clock is not known, as for a CPU."""
    from voxelocity.core.device import numbered

    device = numbered(device)
    return CudaClock(device) if device.type == "cuda" else None
