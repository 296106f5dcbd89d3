"""Devices: which one "cuda" means, whether one is full, and the CPU for a program without torch. Imports no torch.

Each thread has its own current CUDA device, which is 0 until the thread sets it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


# The CPU allocator raises a plain RuntimeError with these words, oneDNN one with nothing more than these texts: what it
# does not support fails earlier, at the descriptor of the primitive.
_CPU_WORDS = "DefaultCPUAllocator: can't allocate memory"
_ONEDNN_TEXTS = ("could not create a primitive", "could not execute a primitive")


@dataclass(frozen=True)
class Host:
    """Takes the place of `torch.device("cpu")` where arrays are NumPy's."""

    type: Literal["cpu"] = "cpu"

    def __str__(self) -> str:
        return self.type


HOST = Host()
Device: TypeAlias = "torch.device | Host"


def numbered(device: torch.device | str) -> torch.device:
    """The device with its number: "cuda" becomes the current device of the calling thread. Others stay unchanged.

    Call it once, in the user's thread: in one of our threads, "cuda" may mean another device.

    Raises:
        ConfigError: the device is "cuda", and torch sees no CUDA device.
    """
    import torch

    device = torch.device(device)
    if str(device) != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device: 'cuda' was requested, but torch {torch.__version__} sees no CUDA device; use 'cpu', or install a "
            "CUDA build of torch and its driver"
        )
    return torch.device("cuda", torch.cuda.current_device())


def all_gpus() -> tuple[torch.device, ...]:
    """Those that are visible, the current one first."""
    import torch

    current = torch.cuda.current_device()
    others = [number for number in range(torch.cuda.device_count()) if number != current]
    return tuple(torch.device("cuda", number) for number in (current, *others))


def freest_gpu() -> int:
    """The number of the visible GPU with the most free memory.

    The current one if there is only one, if the program already chose another than the first, or if free memory is not
    known. The driver is asked, because asking CUDA would take memory on each GPU.
    """
    import torch

    current = torch.cuda.current_device()
    numbers = range(torch.cuda.device_count())
    if len(numbers) < 2 or current != 0:
        return current
    try:
        free_bytes = [
            torch.cuda.get_device_properties(number).total_memory - torch.cuda.device_memory_used(number)
            for number in numbers
        ]
    # Without the driver's library, in a part of a GPU, without permission: each has errors of its own.
    except Exception:
        return current
    return free_bytes.index(max(free_bytes))


def as_current(device: Device) -> AbstractContextManager[object]:
    """Makes a CUDA device the calling thread's current one within the block; does nothing for other devices.

    Page-locked memory, streams and kernels need it: they belong to the current device, and the first of them on a
    device takes a few hundred megabytes of its memory.
    """
    if isinstance(device, Host) or device.type != "cuda":
        return nullcontext()
    import torch

    return torch.cuda.device(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device or of the host is full. Imports nothing: memory may be full."""
    if isinstance(error, MemoryError):
        return True
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    is_cpus = isinstance(error, RuntimeError) and (_CPU_WORDS in str(error) or str(error) in _ONEDNN_TEXTS)
    return is_cpus or isinstance(error, torch.OutOfMemoryError)
