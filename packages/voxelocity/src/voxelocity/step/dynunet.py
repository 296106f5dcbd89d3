"""DynUNet, the network of nnU-Net, without MONAI: importing MONAI would delay the first step by seconds (docs/log).

Its part names and initial weights are those of MONAI's class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from voxelocity.core.region import Index3
from voxelocity.step.fused_norm import InstanceNorm, activated, join

_SLOPE = 0.01


_NORMS = {"instance": InstanceNorm, "batch": nn.BatchNorm3d}


class DynUNet(nn.Module):
    """U-Net whose kernels and strides are chosen level by level (Isensee et al., Nature Methods 18, 2021).

    Maps images (b, num_channels, x, y, z) to logits (b, num_classes, x, y, z).

    Args:
        num_channels: of the image.
        num_classes: of the logits.
        kernels: of the convolutions of each level, finest first; 1 or 3 along each axis.
        strides: of the first convolution of each level, finest first; the first is (1, 1, 1).
        widths: feature channels of each level; at least three levels.
        norm: normalization after each convolution.
        dropout: share of features dropped after each convolution while training.
        is_residual: use residual blocks on the way down.
        stem_stride: of a convolution before the first level; a transposed one brings the logits back. The levels then
            work on a coarser grid, at a fraction of the cost. (1, 1, 1) has neither convolution, as in MONAI.
    """

    def __init__(
        self,
        *,
        num_channels: int,
        num_classes: int,
        kernels: Sequence[Index3],
        strides: Sequence[Index3],
        widths: Sequence[int],
        norm: Literal["instance", "batch"],
        dropout: float,
        is_residual: bool,
        stem_stride: Index3 = (1, 1, 1),
    ) -> None:
        super().__init__()
        has_stem = stem_stride != (1, 1, 1)
        self.stem = _stem(num_channels, widths[0], stem_stride, norm, dropout) if has_stem else nn.Identity()
        num_channels = widths[0] if has_stem else num_channels
        down = [
            _Block(before, after, kernel, stride, norm=norm, dropout=dropout, is_residual=is_residual)
            for before, after, kernel, stride in zip((num_channels, *widths), widths, kernels, strides, strict=False)
        ]
        self.input_block = down[0]
        self.downsamples = nn.ModuleList(down[1:-1])
        self.bottleneck = down[-1]
        self.upsamples = nn.ModuleList(
            _UpBlock(widths[level + 1], widths[level], kernels[level + 1], strides[level + 1], norm, dropout)
            for level in reversed(range(len(widths) - 1))
        )
        self.output_block = nn.Sequential()
        kind = nn.ConvTranspose3d if has_stem else nn.Conv3d
        self.output_block.add_module(
            "conv", _conv(kind, widths[0], num_classes, stem_stride, stem_stride, dropout, bias=True)
        )
        self.apply(_initialize)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skips = [self.input_block(self.stem(image))]
        for downsample in self.downsamples:
            skips.append(downsample(skips[-1]))
        features = self.bottleneck(skips[-1])
        for upsample in self.upsamples:
            features = upsample(features, skips.pop())
        logits: torch.Tensor = self.output_block(features)
        return logits


class _Block(nn.Module):
    """Two convolutions, each normalized; the first has the stride."""

    def __init__(
        self, before: int, after: int, kernel: Index3, stride: Index3, *, norm: str, dropout: float, is_residual: bool
    ) -> None:
        super().__init__()
        self.conv1 = _conv(nn.Conv3d, before, after, kernel, stride, dropout)
        self.conv2 = _conv(nn.Conv3d, after, after, kernel, (1, 1, 1), dropout)
        self.lrelu = nn.LeakyReLU(_SLOPE, inplace=True)
        self.norm1, self.norm2 = (_NORMS[norm](after, affine=True) for _ in range(2))
        self.is_residual = is_residual
        self.conv3: nn.Module = nn.Identity()
        self.norm3: nn.Module = nn.Identity()
        if is_residual and (before != after or stride != (1, 1, 1)):
            self.conv3 = _conv(nn.Conv3d, before, after, (1, 1, 1), stride, dropout)
            self.norm3 = _NORMS[norm](after, affine=True)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = activated(self.norm1, self.lrelu, self.conv1(features))
        if not self.is_residual:
            return activated(self.norm2, self.lrelu, self.conv2(inner))
        inner = self.norm2(self.conv2(inner))
        inner += self.norm3(self.conv3(features))
        result: torch.Tensor = self.lrelu(inner)
        return result


class _UpBlock(nn.Module):
    """Features brought to the finer level, joined with that level's features from the way down."""

    def __init__(self, before: int, after: int, kernel: Index3, stride: Index3, norm: str, dropout: float) -> None:
        super().__init__()
        self.transp_conv = _conv(nn.ConvTranspose3d, before, after, stride, stride, dropout)
        self.conv_block = _Block(2 * after, after, kernel, (1, 1, 1), norm=norm, dropout=dropout, is_residual=False)

    def forward(self, features: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.conv_block(join(self.transp_conv(features), skip))
        return joined


class _Stem(nn.Sequential):
    """A convolution, a norm and an activation."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        conv, norm, activation = self
        assert isinstance(activation, nn.LeakyReLU)
        return activated(norm, activation, conv(image))


def _stem(num_channels: int, width: int, stride: Index3, norm: str, dropout: float) -> _Stem:
    x, y, z = (4 if s > 1 else 3 for s in stride)
    conv = _conv(nn.Conv3d, num_channels, width, (x, y, z), stride, dropout)
    return _Stem(conv, _NORMS[norm](width, affine=True), nn.LeakyReLU(_SLOPE, inplace=True))


def _conv(
    kind: type[nn.Conv3d] | type[nn.ConvTranspose3d],
    before: int,
    after: int,
    kernel: Index3,
    stride: Index3,
    dropout: float,
    *,
    bias: bool = False,
) -> nn.Sequential:
    x, y, z = ((k - s + 1) // 2 for k, s in zip(kernel, stride, strict=True))
    layers = nn.Sequential()
    layers.add_module("conv", kind(before, after, kernel, stride, (x, y, z), bias=bias))
    if dropout:
        layers.add_module("dropout", nn.Dropout(dropout))
    return layers


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(module.weight, a=_SLOPE)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
