"""The smallest kernel: whether Triton can compile one here and launch it, which needs a C compiler."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from voxelocity.core.kernels import launch
from voxelocity_observe.core.device import as_current


@triton.jit
def touch(memory):
    """Writes a number."""
    tl.store(memory, 1.0)


def try_kernel(device: torch.device) -> None:
    """Compiles and launches a kernel on a device, without waiting for it.

    Raises:
        Exception: whatever Triton raises.
    """
    with as_current(device):
        launch(touch, (1,), torch.empty(4, device=device))
