"""The most memory that was in use since a moment: of the device as torch's allocator counts it, and of the process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

_PROCESS = Path("/proc/self")


class PeakMeter(Protocol):
    """Remembers the highest point of a quantity."""

    def reset(self) -> None:
        """The highest point from now on counts."""
        ...

    def peak_bytes(self) -> int | None:
        """The highest point since the last `reset`; None if it is unknown."""
        ...


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
        """Counts from now on."""
        import torch

        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """The most bytes in tensors since the last `reset`."""
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
        """Counts from now on, if the system allows it."""
        try:
            # 5 sets the high water mark to what is resident now (man 5 proc, clear_refs).
            (self._process / "clear_refs").write_text("5")
            self._can_reset = True
        except OSError:
            self._can_reset = False

    def peak_bytes(self) -> int | None:
        """The most resident bytes since the last `reset`; None if the system refused that one."""
        if not self._can_reset:
            return None
        try:
            lines = (self._process / "status").read_text().splitlines()
        except OSError:
            return None
        found = next((line for line in lines if line.startswith("VmHWM:")), "")
        words = found.split()
        return int(words[1]) * 1024 if len(words) > 1 else None
