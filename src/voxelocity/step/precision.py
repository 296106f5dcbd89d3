"""The number formats and the code with which a step computes. Weights stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from voxelocity.core.config import Config
from voxelocity.observe import cpu_has_fast_bfloat16

CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class PrecisionConfig(Config):
    """Number formats, memory format and compilation of the forward and backward pass."""

    compute: Literal["float32", "bfloat16", "float16"]
    """Format of convolutions under autocast; float16 also scales the loss."""
    channels_last: bool = False
    """Whether tensors are in memory with the channels innermost (channels_last_3d)."""
    compile: CompileMode = "none"
    """The mode of `torch.compile` for the training's forward and backward pass; "none" does not compile."""

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last_3d if self.channels_last else torch.contiguous_format


def autocast(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context in which forward passes run; does nothing for float32."""
    if config.compute == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[config.compute])


def precision_on(config: PrecisionConfig, device: torch.device) -> PrecisionConfig:
    """The same configuration, with float32 in place of a compute format that is slow on this device.

    A float16 model took seven times as long on a CPU in float16 as in float32. Most CPUs, and GPUs before Ampere, are
    slower in bfloat16 than in float32; float16 cannot replace it there, as a model trained in bfloat16 may overflow it.
    """
    if config.compute == "float32" or (config.compute == "float16" and device.type != "cpu"):
        return config
    if config.compute == "bfloat16" and _has_fast_bfloat16(device):
        return config
    return config.model_copy(update={"compute": "float32"})


def _has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return cpu_has_fast_bfloat16()
