"""Which implementation computes the steps of a patch: compiled loops on a CPU, Triton on a CUDA device, or torch.

And how arrays get to its device.
"""

from __future__ import annotations

import functools
import warnings
from typing import Literal

import numpy as np
import torch

from voxelocity.core.kernels import has_triton
from voxelocity.core.native import has_loops
from voxelocity.core.volume import Array
from voxelocity_observe.core.device import as_current

StepEngine = Literal["auto", "native", "triton", "torch"]
"""What a caller asks for. "auto" takes the fastest that is available on the tensor's device; "torch" is plain torch,
the reference and the off switch."""


def step_engine(engine: StepEngine, device: torch.device) -> Literal["native", "triton", "torch"]:
    """What this engine means for tensors on this device: "torch" where the requested one is not available.

    "triton" on a CPU is for Triton's interpreter.
    """
    if engine == "torch":
        return "torch"
    if engine == "triton" or (engine == "auto" and device.type == "cuda"):
        return "triton" if has_triton() and (device.type != "cuda" or _launches(device)) else "torch"
    return "native" if device.type == "cpu" and has_loops() else "torch"


@functools.cache
def _launches(device: torch.device) -> bool:
    """Whether Triton can compile and launch kernels there; a warning says so once if not."""
    from voxelocity.monai.steps.triton_probe import try_kernel

    try:
        try_kernel(device)
    except Exception as error:  # a missing compiler, a driver too old: each release has errors of its own
        warnings.warn(
            f"voxelocity: Triton cannot compile kernels for {device} ({type(error).__name__}: {str(error)[:200]}), "
            "so torch makes the patches there, which is slower; install a C compiler, or see voxelocity doctor",
            stacklevel=2,
        )
        return False
    return True


def send(array: Array, device: torch.device) -> torch.Tensor:
    """The array on the device, copied on its current stream; the host does not wait for it.

    On a CPU it is the array's own memory.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array)).view(array.shape)
    if device.type != "cuda":
        return tensor.to(device)
    with as_current(device):
        return tensor.pin_memory().to(device, non_blocking=True)
