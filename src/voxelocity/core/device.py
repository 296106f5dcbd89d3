"""Which CUDA device "cuda" means. Each thread has its own current device, which is 0 until the thread sets it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from voxelocity.core.errors import ConfigError


def numbered(device: torch.device | str) -> torch.device:
    """The device with its number: "cuda" becomes the current device of the calling thread. Others stay unchanged.

    Call it once, in the user's thread: in one of our threads, "cuda" may mean another device.

    Raises:
        ConfigError: the device is "cuda", and torch sees no CUDA device.
    """
    device = torch.device(device)
    if str(device) != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device: 'cuda' was asked for, but torch {torch.__version__} sees no CUDA device; use 'cpu', or install a "
            "CUDA build of torch and its driver"
        )
    return torch.device("cuda", torch.cuda.current_device())


def all_gpus() -> tuple[torch.device, ...]:
    """Those that are visible, the current one first."""
    current = torch.cuda.current_device()
    others = [number for number in range(torch.cuda.device_count()) if number != current]
    return tuple(torch.device("cuda", number) for number in (current, *others))


def freest_gpu() -> int:
    """The number of the visible GPU with the most free memory.

    The current one if there is only one, if the program already chose another than the first, or if free memory is not
    known. The driver is asked, because asking CUDA would take memory on each GPU.
    """
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


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the calling thread's current one within the block; does nothing for other devices.

    Page-locked memory, streams and kernels need it: they belong to the current device, and the first of them on a
    device takes a few hundred megabytes of its memory.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
