"""Number formats, memory format, compilation and switches, as data. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from voxelocity.core.batch import ImageFormat
from voxelocity.core.config import Config
from voxelocity.step.network_config import NetworkConfig
from voxelocity.step.network_table import NETWORKS
from voxelocity_observe.core.device import Device, Host
from voxelocity_observe.core.host import cpu_has_fast_bfloat16

if TYPE_CHECKING:
    import torch

CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]


class LossScaleConfig(Config):
    """By what float16 multiplies the loss before the backward pass, so that small gradients do not become 0."""

    initial: float = Field(default=65536.0, gt=0.0, le=2.0**24)
    """Of the first step. A step whose gradients overflow is left out, and the scale halved."""
    growth_interval: int = Field(default=2000, ge=1)
    """Steps without an overflow after which it is doubled."""
    fixed: bool = False
    """Whether it stays as it begins; a step whose gradients overflow is left out all the same."""


def _names(value: Any) -> Any:
    """Names, also if they come as one text; YAML reads 0 as a number."""
    return [part.strip() for part in str(value).split(",")] if isinstance(value, str | int) else value


class PrecisionConfig(Config):
    """Number formats, memory format and compilation of the forward and backward pass."""

    compute: Literal["float32", "bfloat16", "float16"]
    """Format of convolutions under autocast; float16 also scales the loss."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """With float16."""
    float32_layers: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Layers that compute in float32 whatever `compute` says: their names in the network, or patterns such as
    upsamples.*"""
    channels_last: bool = False
    """Whether tensors are in memory with the channels innermost (channels_last_3d)."""
    compile: CompileMode = "none"
    """The mode of `torch.compile` for the training's forward and backward pass; "none" does not compile."""
    step_graph: bool = False
    """Whether a training step on a GPU is recorded as one CUDA graph and replayed, which takes the host out of it."""

    @property
    def memory_format(self) -> torch.memory_format:
        import torch

        return torch.channels_last_3d if self.channels_last else torch.contiguous_format


class BackendConfig(Config):
    """How libraries and code of our own compute; these switches are of the whole process."""

    tf32: bool = True
    """Whether float32 convolutions and matrix products round their factors to TF32, as torch does in convolutions."""
    cudnn_benchmark: bool = False
    """Whether cuDNN tries its algorithms at each new shape and keeps the quickest, whose roundings may differ."""
    expandable_segments: bool = False
    """Whether torch's allocator lets its segments grow, which leaves fewer gaps where sizes vary. Applies to memory
    taken after it is set. Does not change results."""
    keep_freed_memory: bool = True
    """Whether a process that trains on a CPU keeps up to 2 GiB of freed memory for its next step, as far as tensors are
    below 32 MiB. Otherwise the system takes it back and clears it, page by page, when it is needed again. Applies for
    good, and with glibc alone. Does not change results."""
    fused_loss: bool = True
    """Whether the loss and its gradient are computed in two passes over the logits by code of our own: kernels on a GPU
    where Triton can run them, loops in C on a CPU. If not, by torch's operations, which agree up to roundings."""
    fused_norm: bool = True
    """Whether instance norms of DynUNet, UNet and SegResNet in channels_last_3d use our own kernel or loop in C, which
    also does the activation after it; torch's leaves that memory format and copies. Changes results by roundings."""


def image_format(network: NetworkConfig, precision: PrecisionConfig, *, num_channels: int) -> ImageFormat:
    """In which format the step takes images without converting them, with the same results bit for bit.

    Half precision only where images enter nothing but convolutions, which autocast gives them in that format anyway:
    our own networks, except where the first level has as many features as the image has channels, as a residual unit
    may then add the image itself, in float32, and where layers stay in float32, of which the first may be one. Neither
    other networks' first operations are known, nor those of a user's own; these get float32. The loss never sees the
    image.

    Args:
        network: that is trained.
        precision: of the step.
        num_channels: of the images.
    """
    is_known = NETWORKS[network.name].takes_half and network.widths[0] != num_channels
    return ImageFormat(
        dtype=precision.compute if is_known and not precision.float32_layers else "float32",
        channels_last=precision.channels_last,
    )


def precision_on(config: PrecisionConfig, device: Device) -> PrecisionConfig:
    """The same configuration, with float32 in place of a compute format that is slow on this device.

    A float16 model took seven times as long on a CPU in float16 as in float32. Most CPUs, and GPUs before Ampere, are
    slower in bfloat16 than in float32; float16 cannot replace it there, as a model trained in bfloat16 may overflow it.
    """
    if config.compute == "float32" or (config.compute == "float16" and device.type != "cpu"):
        return config
    if config.compute == "bfloat16" and _has_fast_bfloat16(device):
        return config
    return config.model_copy(update={"compute": "float32"})


def _has_fast_bfloat16(device: Device) -> bool:
    if isinstance(device, Host) or device.type != "cuda":
        return cpu_has_fast_bfloat16()
    import torch

    return torch.cuda.get_device_capability(device) >= (8, 0)
