"""The most memory that this process has held at once since it began: on the host and on its accelerators."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_host_bytes(*, status: Path = _STATUS) -> int:
    """Main memory at its highest, files that were mapped and memory that is shared with others included.

    Linux restarts the count for each program; elsewhere it is what `getrusage` reports, which may include the peak of
    the program that started this one.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, on macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_bytes() -> int | None:
    """Memory of all CUDA devices that tensors of this process took at its highest, the sum of each device's peak.

    None if torch has not used a CUDA device. Waits for nothing, imports nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))
