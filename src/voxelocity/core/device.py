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


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the calling thread's current one within the block; does nothing for other devices.

    Page-locked memory, streams and kernels need it: they belong to the current device, and the first of them on a
    device takes a few hundred megabytes of its memory.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
