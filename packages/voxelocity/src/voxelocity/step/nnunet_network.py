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
from voxelocity.core.region import Index3
from voxelocity.step.fused_norm import InstanceNorm, NormedSequence

MOST_LEVELS = 12
_ONES = (1, 1, 1)
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
    "torch.nn.modules.instancenorm.InstanceNorm2d": InstanceNorm,
    "torch.nn.modules.instancenorm.InstanceNorm3d": InstanceNorm,
    "torch.nn.modules.batchnorm.BatchNorm2d": nn.BatchNorm3d,
    "torch.nn.modules.batchnorm.BatchNorm3d": nn.BatchNorm3d,
}
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"torch.nn.LeakyReLU": nn.LeakyReLU, "torch.nn.ReLU": nn.ReLU}


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
    def kernels(self) -> list[Index3]:
        """`kernel_sizes` along three axes."""
        return [_in_space(sides) for sides in self.kernel_sizes]

    @property
    def steps(self) -> list[Index3]:
        """`strides` along three axes."""
        return [_in_space(sides) for sides in self.strides]

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


def _in_space(sides: tuple[int, ...]) -> Index3:
    """Planes are one voxel thick."""
    *first, second, third = sides
    return (first[0] if first else 1, second, third)


class PlannedUNet(nn.Module):
    """nnU-Net's PlainConvUNet or ResidualEncoderUNet without deep supervision.

    Maps images (b, num_channels, x, y, z) to logits (b, num_classes, x, y, z). Residual if its plan counts blocks. A
    plan with two axes gives kernels that are one voxel thick along x, so planes do not see each other; its weights get
    that axis.
    """

    def __init__(self, plan: Architecture, *, num_channels: int, num_classes: int) -> None:
        super().__init__()
        self.plan = plan
        self.encoder = _Encoder(plan, num_channels)
        self.decoder = _Decoder(plan, num_classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(self.encoder(image))
        return logits


class _Encoder(nn.Module):
    def __init__(self, plan: Architecture, num_channels: int) -> None:
        super().__init__()
        widths, kernels, strides = plan.features_per_stage, plan.kernels, plan.steps
        levels = zip(kernels, strides, plan.n_conv_per_stage or plan.n_blocks_per_stage, strict=True)
        self.stem: nn.Module = nn.Identity()
        if plan.n_blocks_per_stage:
            self.stem = _Convolutions(num_channels, widths[0], kernels[0], _ONES, 1, plan)
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
        widths, kernels, strides = plan.features_per_stage, plan.kernels, plan.steps
        self.transpconvs, self.stages = nn.ModuleList(), nn.ModuleList()
        # Those of the coarser levels serve training only; checkpoints have their weights too.
        self.seg_layers = nn.ModuleList()
        for level, count in zip(reversed(range(plan.n_stages - 1)), plan.n_conv_per_stage_decoder, strict=True):
            width, stride = widths[level], strides[level + 1]
            up = nn.ConvTranspose3d(widths[level + 1], width, stride, stride, bias=plan.conv_bias)
            self.transpconvs.append(up)
            self.stages.append(_Convolutions(2 * width, width, kernels[level], _ONES, count, plan))
            self.seg_layers.append(nn.Conv3d(width, num_classes, 1))

    def forward(self, skips: list[torch.Tensor]) -> torch.Tensor:
        features = skips.pop()
        for up, stage in zip(self.transpconvs, self.stages, strict=True):
            features = stage(torch.cat((up(features), skips.pop()), dim=1))
        logits: torch.Tensor = self.seg_layers[-1](features)
        return logits


class _Convolution(NormedSequence):
    """A convolution, normalized; `is_active`: with an activation."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: Index3,
        stride: Index3,
        plan: Architecture,
        *,
        has_bias: bool | None = None,
        is_active: bool = True,
    ) -> None:
        super().__init__()
        x, y, z = ((k - 1) // 2 for k in kernel)
        bias = plan.conv_bias if has_bias is None else has_bias
        self.conv = nn.Conv3d(before, after, kernel, stride, (x, y, z), bias=bias)
        self.norm = plan.norm(after)
        if is_active:
            self.nonlin = plan.activation()


class _Convolutions(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: Index3, stride: Index3, count: int, plan: Architecture) -> None:
        super().__init__()
        rest = (_Convolution(after, after, kernel, _ONES, plan) for _ in range(count - 1))
        self.convs = nn.Sequential(_Convolution(before, after, kernel, stride, plan), *rest)


class _PlainLevel(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: Index3, stride: Index3, count: int, plan: Architecture) -> None:
        super().__init__(_Convolutions(before, after, kernel, stride, count, plan))


class _ResidualLevel(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: Index3, stride: Index3, count: int, plan: Architecture) -> None:
        super().__init__()
        rest = (_ResidualBlock(after, after, kernel, _ONES, plan) for _ in range(count - 1))
        self.blocks = nn.Sequential(_ResidualBlock(before, after, kernel, stride, plan), *rest)


class _ResidualBlock(nn.Module):
    """Two convolutions and a shortcut that is pooled where they have a stride (ResNet-D)."""

    def __init__(self, before: int, after: int, kernel: Index3, stride: Index3, plan: Architecture) -> None:
        super().__init__()
        self.conv1 = _Convolution(before, after, kernel, stride, plan)
        self.conv2 = _Convolution(after, after, kernel, _ONES, plan, is_active=False)
        self.nonlin2 = plan.activation()
        shortcut: list[nn.Module] = []
        if stride != _ONES:
            shortcut.append(nn.AvgPool3d(stride, stride))
        if before != after:
            shortcut.append(_Convolution(before, after, _ONES, _ONES, plan, has_bias=False, is_active=False))
        self.skip = nn.Sequential(*shortcut)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = self.conv2(self.conv1(features))
        inner += self.skip(features)
        result: torch.Tensor = self.nonlin2(inner)
        return result
