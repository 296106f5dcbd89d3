"""MONAI's UNet without MONAI, for the same reason as `dynunet`: with MONAI's part names and initial weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from voxelocity.core.region import Index3
from voxelocity.step.fused_norm import InstanceNorm, activated, join

_ONE: Index3 = (1, 1, 1)


class UNet(nn.Module):
    """U-Net with a convolution or a residual unit at each level (Kerfoot et al., 10.1007/978-3-030-12029-0_40).

    Maps images (b, num_channels, x, y, z) to logits (b, num_classes, x, y, z).

    Args:
        num_channels: of the image.
        num_classes: of the logits.
        widths: feature channels of each level, finest first; at least two levels.
        strides: down-sampling between one level and the next.
        norm: normalization after each convolution; instance norms have no weights here.
        dropout: share of features dropped after each convolution while training.
        num_res_units: convolutions of a residual unit; with 0, each level has one convolution.
    """

    def __init__(
        self,
        *,
        num_channels: int,
        num_classes: int,
        widths: Sequence[int],
        strides: Sequence[Index3],
        norm: Literal["instance", "batch"],
        dropout: float,
        num_res_units: int,
    ) -> None:
        super().__init__()
        parts = _Parts(norm=norm, dropout=dropout, num_res_units=num_res_units)
        self.model = _level(parts, num_channels, num_classes, widths, strides, is_top=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(image)
        return logits


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Builds the parts of every level."""

    norm: str
    dropout: float
    num_res_units: int

    def down(self, before: int, after: int, stride: Index3) -> nn.Module:
        if self.num_res_units:
            return _ResidualUnit(self, before, after, stride, num_convs=self.num_res_units)
        return self.conv(before, after, stride)

    def up(self, before: int, after: int, stride: Index3, *, is_top: bool) -> nn.Module:
        transposed = self.conv(before, after, stride, is_transposed=True, has_norm=not is_top or self.num_res_units > 0)
        if self.num_res_units == 0:
            return transposed
        return nn.Sequential(transposed, _ResidualUnit(self, after, after, _ONE, num_convs=1, has_last_norm=not is_top))

    def conv(
        self, before: int, after: int, stride: Index3, *, is_transposed: bool = False, has_norm: bool = True
    ) -> nn.Sequential:
        layers = nn.Sequential()
        if is_transposed:
            x, y, z = (s - 1 for s in stride)
            conv: nn.Module = nn.ConvTranspose3d(before, after, 3, stride, padding=1, output_padding=(x, y, z))
        else:
            conv = nn.Conv3d(before, after, 3, stride, padding=1)
        layers.add_module("conv", conv)
        if has_norm:
            norm = InstanceNorm(after) if self.norm == "instance" else nn.BatchNorm3d(after)
            named = {"N": norm, "D": nn.Dropout(self.dropout), "A": nn.PReLU()}
            layers.add_module("adn", _Finish(OrderedDict(named)))
        return layers


class _Finish(nn.Sequential):
    """What follows a convolution: norm, dropout, activation; the first and the last at once if nothing is dropped."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        norm, dropout, activation = self
        assert isinstance(dropout, nn.Dropout)
        if dropout.p == 0.0 or not dropout.training:
            return activated(norm, activation, features)
        result: torch.Tensor = activation(dropout(norm(features)))
        return result


def _level(
    parts: _Parts, before: int, after: int, widths: Sequence[int], strides: Sequence[Index3], *, is_top: bool
) -> nn.Sequential:
    """A level with all levels below it, which are built first, as in MONAI, so that a seed gives the same weights."""
    width, stride = widths[0], strides[0]
    below: nn.Module
    if len(widths) > 2:
        below, joined = _level(parts, width, width, widths[1:], strides[1:], is_top=False), 2 * width
    else:
        below, joined = parts.down(width, widths[1], _ONE), width + widths[1]
    down = parts.down(before, width, stride)
    return nn.Sequential(down, _Skip(below), parts.up(joined, after, stride, is_top=is_top))


class _Skip(nn.Module):
    """The input joined with the output of the submodule."""

    def __init__(self, submodule: nn.Module) -> None:
        super().__init__()
        self.submodule = submodule

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return join(features, self.submodule(features))


class _ResidualUnit(nn.Module):
    """Convolutions, with the input added to their output."""

    def __init__(
        self, parts: _Parts, before: int, after: int, stride: Index3, *, num_convs: int, has_last_norm: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Sequential()
        self.residual: nn.Module = nn.Identity()
        for number in range(num_convs):
            has_norm = has_last_norm or number < num_convs - 1
            unit = parts.conv(after if number else before, after, _ONE if number else stride, has_norm=has_norm)
            self.conv.add_module(f"unit{number}", unit)
        if stride != _ONE:
            self.residual = nn.Conv3d(before, after, 3, stride, padding=1)
        elif before != after:
            self.residual = nn.Conv3d(before, after, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        shortcut = self.residual(features)
        result: torch.Tensor = self.conv(features) + shortcut
        return result
