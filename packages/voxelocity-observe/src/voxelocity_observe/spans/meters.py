"""What a recorder reads besides the host's clock: marks on an accelerator's own time line, and peaks of memory.

A mark is queued like any other work: making it waits for nothing.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from voxelocity_observe.core.host import high_water_bytes

if TYPE_CHECKING:
    import torch

_PROCESS = Path("/proc/self")


class CudaClock:
    """Marks on a device, CUDA events from a pool, and the seconds between two of them.

    Two marks count what lies between them on the device, including work it waited for.

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
        """The mark is no longer needed and may be reused."""
        self._free.append(mark)


def device_clock(device: torch.device | str) -> CudaClock | None:
    """The clock of a device, for "cuda" of the calling thread's; None if the clock is not known, as for a CPU."""
    from voxelocity_observe.core.device import numbered

    device = numbered(device)
    return CudaClock(device) if device.type == "cuda" else None


class PeakMeter(Protocol):
    """Remembers the highest point of a quantity."""

    def reset(self) -> None:
        """The highest point from now on counts."""

    def peak_bytes(self) -> int | None:
        """The highest point since the last `reset`; None if it is unknown."""


class CudaPeak:
    """Bytes of a CUDA device in tensors of this process. Other processes and CUDA's own memory do not count.

    `reset` resets `torch.cuda.max_memory_allocated`, which a process has only once: a program that resets it too
    changes both. Neither call waits for the device, because the allocator lives on the host.

    Args:
        device: which one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        import torch

        return int(torch.cuda.max_memory_allocated(self._device))


class HostPeak:
    """Resident memory of this process, all threads, on Linux. Each call takes 10 to 100 microseconds.

    Args:
        process: folder of the process below /proc, for tests.
    """

    def __init__(self, process: Path = _PROCESS) -> None:
        self._process = process
        self._can_reset = False

    def reset(self) -> None:
        try:
            # 5 sets the high water mark to what is resident now (man 5 proc, clear_refs).
            (self._process / "clear_refs").write_text("5")
            self._can_reset = True
        except OSError:
            self._can_reset = False

    def peak_bytes(self) -> int | None:
        """The most resident bytes since the last `reset`; None if the system refused that one."""
        return high_water_bytes(self._process / "status") if self._can_reset else None
