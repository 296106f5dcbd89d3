"""Which CUDA device "cuda" means. Each thread has a current device of its own, which is 0 until the thread sets it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from voxelocity.core.errors import ConfigError


def numbered(device: torch.device | str) -> torch.device:
    """The device with its number: "cuda" becomes the current device of the calling thread. Others stay unchanged.

    Call it once, in the user's thread: "cuda" means another device in a thread of ours.

    Raises:
        ConfigError: "cuda" is meant, and torch sees no CUDA device.
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
    """Makes a CUDA device the calling thread's current one for a while; does nothing for other devices.

    Page-locked memory, streams and kernels need it: they belong to the current device, and the first of them on a
    device takes some hundred megabytes of it.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
