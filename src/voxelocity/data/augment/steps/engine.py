"""Which implementation computes the steps of a patch: compiled loops on a CPU, Triton on a CUDA device, or torch."""

from __future__ import annotations

import functools
import importlib.util
from typing import Literal

import torch

from voxelocity.core.jit import has_numba

StepEngine = Literal["auto", "numba", "triton", "torch"]
"""What a caller asks for. "auto" takes the fastest that is available on the tensor's device; "torch" is plain torch,
the reference and the off switch."""


def step_engine(engine: StepEngine, device: torch.device) -> Literal["numba", "triton", "torch"]:
    """What this engine means for tensors on this device: "torch" where the requested one is not available.

    "triton" on a CPU is for Triton's interpreter.
    """
    if engine == "torch":
        return "torch"
    if engine == "triton" or (engine == "auto" and device.type == "cuda"):
        return "triton" if has_triton() else "torch"
    return "numba" if device.type == "cpu" and has_numba() else "torch"


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None
