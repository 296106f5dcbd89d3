"""Convolutions whose weight gradient CPUs get wrong in half precision, in float32 instead.

On CPUs with AVX-512 bfloat16, oneDNN 3.12 (torch 2.13) adds uninitialized memory to the weight gradient of a 3-D
convolution in bfloat16, transposed ones included, whose input is shorter along its first spatial axis than the kernel,
such as 2 x 4 x 4 voxels under 3 x 3 x 3. Inputs that short are at the bottom of a network, so float32 there costs
nothing that can be measured.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from voxelocity.step.precision_config import PrecisionConfig


class ShortInputInFloat32(nn.Module):
    """Computes in float32 on a CPU if the input is shorter than the kernel; mixed into the class of a convolution."""

    def forward(self, image_bcxyz: torch.Tensor, *arguments: Any) -> Any:
        kernel: Any = self.kernel_size
        if image_bcxyz.device.type != "cpu" or image_bcxyz.shape[2] >= kernel[0]:
            return super().forward(image_bcxyz, *arguments)
        with torch.autocast("cpu", enabled=False):
            return super().forward(image_bcxyz.float(), *arguments)


def guard_gradients(network: nn.Module, precision: PrecisionConfig, device: torch.device) -> nn.Module:
    """The network, whose 3-D convolutions have right gradients in half precision on a CPU. Its state stays unchanged.

    Args:
        network: changed in place; copies of it stay guarded.
        precision: of the training.
        device: that it trains on.
    """
    if device.type == "cpu" and precision.compute != "float32":
        for module in network.modules():
            kind: Any = type(module)
            if (
                isinstance(module, nn.Conv3d | nn.ConvTranspose3d)
                and module.kernel_size[0] > 1
                and not issubclass(kind, ShortInputInFloat32)
            ):
                module.__class__ = _guarded_kind(kind)
    return network


@functools.cache
def _guarded_kind(kind: Any) -> Any:
    return type(kind.__name__, (ShortInputInFloat32, kind), {"__module__": kind.__module__})
