"""In which number formats and by which code a step computes. Weights stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from voxelocity.core.config import Config

CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class PrecisionConfig(Config):
    """Number formats, memory format and compilation of the forward and backward pass."""

    compute: Literal["float32", "bfloat16", "float16"]
    """Format of convolutions under autocast; float16 also scales the loss."""
    channels_last: bool = False
    """Whether tensors lie in memory with the channels innermost (channels_last_3d)."""
    compile: CompileMode = "none"
    """How `torch.compile` makes the training's forward and backward pass, by its own names; "none" leaves it out."""

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last_3d if self.channels_last else torch.contiguous_format


def autocast(config: PrecisionConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context in which forward passes run; does nothing for float32."""
    if config.compute == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[config.compute])
