"""Number formats, memory format and compilation, as data. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from voxelocity.core.config import Config

if TYPE_CHECKING:
    import torch

CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]


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
        import torch

        return torch.channels_last_3d if self.channels_last else torch.contiguous_format
