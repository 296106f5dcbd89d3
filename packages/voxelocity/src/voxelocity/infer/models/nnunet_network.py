"""The two networks of nnU-Net v2's plans, built from plain data: no class that a plan names is imported.

Names of weights are those of the package dynamic_network_architectures, in which nnU-Net has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from voxelocity.core.config import Config

MOST_LEVELS = 12
_Count = Annotated[int, Field(ge=1, le=4096)]
# Layers of a level: nnU-Net's largest presets have 6.
_Layers = Annotated[int, Field(ge=1, le=64)]
# Along the two or three axes of the network.
_Sides = Annotated[tuple[_Count, ...], Field(min_length=2, max_length=3)]
_Levels = Annotated[tuple[_Count, ...], Field(min_length=2, max_length=MOST_LEVELS)]
_CLASSES = "dynamic_network_architectures.architectures"
NETWORKS = (
    f"{_CLASSES}.unet.PlainConvUNet",
    f"{_CLASSES}.unet.ResidualEncoderUNet",
    # In plans of earlier releases.
    f"{_CLASSES}.residual_unet.ResidualEncoderUNet",
    "PlainConvUNet",
    "ResidualEncoderUNet",
)
"""Every name of the two networks in plans."""
_NORMS: Mapping[str, type[nn.Module]] = {
    "torch.nn.modules.instancenorm.InstanceNorm2d": nn.InstanceNorm2d,
    "torch.nn.modules.instancenorm.InstanceNorm3d": nn.InstanceNorm3d,
    "torch.nn.modules.batchnorm.BatchNorm2d": nn.BatchNorm2d,
    "torch.nn.modules.batchnorm.BatchNorm3d": nn.BatchNorm3d,
}
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"torch.nn.LeakyReLU": nn.LeakyReLU, "torch.nn.ReLU": nn.ReLU}
# By number of axes.
_CONVOLUTION: Mapping[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: Mapping[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_POOL: Mapping[int, Any] = {2: nn.AvgPool2d, 3: nn.AvgPool3d}


class _NormOptions(Config):
    eps: float = Field(default=1e-5, gt=0.0)
    affine: bool = False


class _ActivationOptions(Config):
    inplace: bool = False
    negative_slope: float = 0.01


class Architecture(Config):
    """The keys `arch_kwargs` of a plan, level by level, finest first. Axes in the order of the plan."""

    n_stages: int
    features_per_stage: _Levels
    conv_op: Literal["torch.nn.modules.conv.Conv2d", "torch.nn.modules.conv.Conv3d"]
    kernel_sizes: tuple[_Sides, ...]
    strides: tuple[_Sides, ...]
    n_conv_per_stage: tuple[_Layers, ...] = ()
    """Convolutions of each level on the way down."""
    n_blocks_per_stage: tuple[_Layers, ...] = ()
    """Residual blocks of each level, in place of convolutions."""
    n_conv_per_stage_decoder: tuple[_Layers, ...]
    conv_bias: bool = False
    norm_op: Literal[
        "torch.nn.modules.instancenorm.InstanceNorm2d",
        "torch.nn.modules.instancenorm.InstanceNorm3d",
        "torch.nn.modules.batchnorm.BatchNorm2d",
        "torch.nn.modules.batchnorm.BatchNorm3d",
    ]
    norm_op_kwargs: _NormOptions = _NormOptions()
    dropout_op: str | None = None
    """Dropout does nothing in a prediction."""
    dropout_op_kwargs: Mapping[str, Any] | None = None
    nonlin: Literal["torch.nn.LeakyReLU", "torch.nn.ReLU"]
    nonlin_kwargs: _ActivationOptions = _ActivationOptions()

    @model_validator(mode="after")
    def _levels_agree(self) -> Self:
        num = self.n_stages
        lengths = (len(self.features_per_stage), len(self.kernel_sizes), len(self.strides), self._num_encoder_levels)
        if any(length != num for length in lengths) or len(self.n_conv_per_stage_decoder) != num - 1:
            raise ValueError(f"its lists do not all have n_stages = {num} entries ({num - 1} for the decoder)")
        axes = {len(sides) for sides in (*self.kernel_sizes, *self.strides)}
        if axes != {self.num_axes} or not self.norm_op.endswith(f"{self.num_axes}d"):
            raise ValueError(f"its kernels, strides and norm_op do not all have the {self.num_axes} axes of conv_op")
        return self

    @property
    def num_axes(self) -> int:
        """2 for networks of single planes, else 3."""
        return 2 if self.conv_op.endswith("2d") else 3

    @property
    def ones(self) -> tuple[int, ...]:
        """The stride of a layer that keeps the size."""
        return (1,) * self.num_axes

    @property
    def _num_encoder_levels(self) -> int:
        if bool(self.n_conv_per_stage) == bool(self.n_blocks_per_stage):
            return 0
        return len(self.n_conv_per_stage or self.n_blocks_per_stage)

    def norm(self, num_features: int) -> nn.Module:
        return _NORMS[self.norm_op](num_features, **self.norm_op_kwargs.model_dump())

    def activation(self) -> nn.Module:
        options = self.nonlin_kwargs.model_dump()
        if self.nonlin == "torch.nn.ReLU":
            del options["negative_slope"]
        return _ACTIVATIONS[self.nonlin](**options)


class PlannedUNet(nn.Module):
    """nnU-Net's PlainConvUNet or ResidualEncoderUNet without deep supervision.

    Maps images (b, num_channels, x, y, z) to logits (b, num_classes, x, y, z). Residual if its plan counts blocks. The
    network of a plan with two axes takes windows of one plane: x is 1.
    """

    def __init__(self, plan: Architecture, *, num_channels: int, num_classes: int) -> None:
        super().__init__()
        self._is_planar = plan.num_axes == 2
        self.encoder = _Encoder(plan, num_channels)
        self.decoder = _Decoder(plan, num_classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if self._is_planar:
            image = image.squeeze(2)
        logits: torch.Tensor = self.decoder(self.encoder(image))
        return logits.unsqueeze(2) if self._is_planar else logits


class _Encoder(nn.Module):
    def __init__(self, plan: Architecture, num_channels: int) -> None:
        super().__init__()
        widths, kernels = plan.features_per_stage, plan.kernel_sizes
        levels = zip(kernels, plan.strides, plan.n_conv_per_stage or plan.n_blocks_per_stage, strict=True)
        self.stem: nn.Module = nn.Identity()
        if plan.n_blocks_per_stage:
            self.stem = _Convolutions(num_channels, widths[0], kernels[0], plan.ones, 1, plan)
            num_channels = widths[0]
        level_class = _ResidualLevel if plan.n_blocks_per_stage else _PlainLevel
        self.stages = nn.Sequential()
        for width, (kernel, stride, count) in zip(widths, levels, strict=True):
            self.stages.append(level_class(num_channels, width, kernel, stride, count, plan))
            num_channels = width

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        features = self.stem(image)
        skips = []
        for stage in self.stages:
            features = stage(features)
            skips.append(features)
        return skips


class _Decoder(nn.Module):
    def __init__(self, plan: Architecture, num_classes: int) -> None:
        super().__init__()
        widths, kernels, strides = plan.features_per_stage, plan.kernel_sizes, plan.strides
        self.transpconvs, self.stages = nn.ModuleList(), nn.ModuleList()
        # Those of the coarser levels serve training only; checkpoints have their weights too.
        self.seg_layers = nn.ModuleList()
        for level, count in zip(reversed(range(plan.n_stages - 1)), plan.n_conv_per_stage_decoder, strict=True):
            width, stride = widths[level], strides[level + 1]
            up = _TRANSPOSED[plan.num_axes](widths[level + 1], width, stride, stride, bias=plan.conv_bias)
            self.transpconvs.append(up)
            self.stages.append(_Convolutions(2 * width, width, kernels[level], plan.ones, count, plan))
            self.seg_layers.append(_CONVOLUTION[plan.num_axes](width, num_classes, 1))

    def forward(self, skips: list[torch.Tensor]) -> torch.Tensor:
        features = skips.pop()
        for up, stage in zip(self.transpconvs, self.stages, strict=True):
            features = stage(torch.cat((up(features), skips.pop()), dim=1))
        logits: torch.Tensor = self.seg_layers[-1](features)
        return logits


class _Convolution(nn.Sequential):
    """A convolution, normalized; `is_active`: with an activation."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: _Sides,
        stride: _Sides,
        plan: Architecture,
        *,
        has_bias: bool | None = None,
        is_active: bool = True,
    ) -> None:
        super().__init__()
        padding = tuple((k - 1) // 2 for k in kernel)
        bias = plan.conv_bias if has_bias is None else has_bias
        self.conv = _CONVOLUTION[plan.num_axes](before, after, kernel, stride, padding, bias=bias)
        self.norm = plan.norm(after)
        if is_active:
            self.nonlin = plan.activation()


class _Convolutions(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: _Sides, stride: _Sides, count: int, plan: Architecture) -> None:
        super().__init__()
        rest = (_Convolution(after, after, kernel, plan.ones, plan) for _ in range(count - 1))
        self.convs = nn.Sequential(_Convolution(before, after, kernel, stride, plan), *rest)


class _PlainLevel(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: _Sides, stride: _Sides, count: int, plan: Architecture) -> None:
        super().__init__(_Convolutions(before, after, kernel, stride, count, plan))


class _ResidualLevel(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: _Sides, stride: _Sides, count: int, plan: Architecture) -> None:
        super().__init__()
        rest = (_ResidualBlock(after, after, kernel, plan.ones, plan) for _ in range(count - 1))
        self.blocks = nn.Sequential(_ResidualBlock(before, after, kernel, stride, plan), *rest)


class _ResidualBlock(nn.Module):
    """Two convolutions and a shortcut that is pooled where they have a stride (ResNet-D)."""

    def __init__(self, before: int, after: int, kernel: _Sides, stride: _Sides, plan: Architecture) -> None:
        super().__init__()
        self.conv1 = _Convolution(before, after, kernel, stride, plan)
        self.conv2 = _Convolution(after, after, kernel, plan.ones, plan, is_active=False)
        self.nonlin2 = plan.activation()
        shortcut: list[nn.Module] = []
        if stride != plan.ones:
            shortcut.append(_POOL[plan.num_axes](stride, stride))
        if before != after:
            shortcut.append(_Convolution(before, after, plan.ones, plan.ones, plan, has_bias=False, is_active=False))
        self.skip = nn.Sequential(*shortcut)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = self.conv2(self.conv1(features))
        inner += self.skip(features)
        result: torch.Tensor = self.nonlin2(inner)
        return result
