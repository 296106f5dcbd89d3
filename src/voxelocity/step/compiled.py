"""The network compiled by `torch.compile`: the same weights, other code for the forward and backward pass."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping

import torch

from voxelocity.core.errors import ConfigError
from voxelocity.step.precision import CompileMode


def compiled(
    network: torch.nn.Module, mode: CompileMode, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The network's forward pass, compiled at its first call; the network itself for the mode "none".

    The weights stay in the network, so saving, averaging and validation still use the network itself. The first call
    takes half a minute to a minute and a half on two cores, and so does the first call with another shape.

    Raises:
        ConfigError: this machine lacks the compiler that the device's code needs.
    """
    if mode == "none":
        return network
    check_compiler(mode, device)
    forward: Callable[[torch.Tensor], torch.Tensor] = torch.compile(network, mode=mode, dynamic=False)
    return forward


def check_compiler(mode: CompileMode, device: torch.device, *, environ: Mapping[str, str] = os.environ) -> None:
    """Returns if `torch.compile` can generate code for the device.

    Raises:
        ConfigError: a C++ compiler (CPU) or Triton (CUDA) is missing.
    """
    if device.type == "cpu":
        name = environ.get("CXX", "g++")
        if shutil.which(name) is None:
            raise ConfigError(
                f"step: precision.compile={mode} generates C++ code, but there is no compiler '{name}' here; "
                "install g++, name another in the variable CXX, or leave precision.compile=none"
            )
    elif importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"step: precision.compile={mode} needs Triton on a CUDA device, which is not installed; install the "
            "package triton that belongs to this torch, or leave precision.compile=none"
        )
