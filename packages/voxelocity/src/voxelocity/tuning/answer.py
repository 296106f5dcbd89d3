"""The side of a trial's own process: its limits on the device, and the answer that it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity_observe.core.device import is_out_of_memory
from voxelocity_observe.core.host import peak_device_bytes, peak_host_bytes
from voxelocity_observe.core.whole_file import put_in_place

if TYPE_CHECKING:
    import torch


def write_answer(
    path: Path, measurements: Mapping[str, Sequence[float]], *, unseen_host_bytes: int = 0, **about: Any
) -> None:
    """Writes what a trial measured, for `run_trial`, with the peaks of this process.

    Args:
        path: as the trial was given it.
        measurements: by name, one value for each window or repeat.
        unseen_host_bytes: main memory that the real work takes beyond what this process took.
        about: what else is worth knowing, as plain data.

    Raises:
        OSError: the file cannot be written.
    """
    named = {name: list(values) for name, values in measurements.items()}
    _write(path, {"measurements": named, "about": {**about, "unseen_host_bytes": unseen_host_bytes}}, unseen_host_bytes)


def run_process(measure: Callable[[Path, Path], None]) -> None:
    """The whole of a trial's process, whose arguments are TASK and ANSWER: measures the one, writes the other."""
    task, answer = Path(sys.argv[1]), Path(sys.argv[2])
    with memory_errors_answer(answer):
        measure(task, answer)


@contextmanager
def memory_errors_answer(path: Path) -> Iterator[None]:
    """Within the block, running out of memory becomes an answer and ends the process with status 1."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        _write(path, {"out_of_memory": reason})
        sys.exit(1)


def limit_device_memory(device: torch.device, max_bytes: int) -> None:
    """Lets torch's allocator take at most this much of a CUDA device, beyond which it raises its usual error.

    What CUDA and its libraries take themselves, some hundred megabytes, does not count. 0 sets no limit.
    """
    if max_bytes and device.type == "cuda":
        import torch

        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, max_bytes / total_bytes), device)


def _write(path: Path, content: Mapping[str, Any], unseen_host_bytes: int = 0) -> None:
    peaks = {"peak_host_bytes": peak_host_bytes() + unseen_host_bytes, "peak_device_bytes": peak_device_bytes()}
    put_in_place(path, json.dumps({**peaks, **content}, indent=1).encode(), is_durable=False)
