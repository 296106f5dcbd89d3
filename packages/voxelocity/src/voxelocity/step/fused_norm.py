"""Instance norm fused with the leaky ReLU after it, in channels_last_3d memory; torch's norm elsewhere.

torch's instance norm leaves channels_last: it copies its input, and the next convolution converts its output back. On a
GPU kernels here compute it, on a CPU the C loops of `native_norm`. Also group and batch norms that are exact on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from voxelocity.core import kernels as launches
from voxelocity.step import native_norm
from voxelocity.step.fused import differentiable_once, has_triton, is_fused
from voxelocity_observe.core.device import as_current

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = {"cuda"}
"""Types of devices whose kernels Triton compiles; tests add the CPU, where Triton interprets them."""
_MAX_WIDTH = 64
_MAX_SAMPLES = 65535
_MAX_ROWS = 2**31 - 2**20
# As FakeTensor is called, which memory is counted with: importing its class would delay the first step.
_FAKE = "FakeTensor"


@dataclass(frozen=True, kw_only=True)
class NormLaunch:
    """How much each program of a kernel does.

    Attributes:
        tile: numbers in work at once.
        num_warps: of a program.
        num_programs: about as many run; more parts of sums, each shorter.
    """

    tile: int = 4096
    num_warps: int = 8
    num_programs: int = 1024


LAUNCH = NormLaunch()


def can_fuse(features: torch.Tensor) -> bool:
    """Whether `norm_act` takes these features (b, c, x, y, z); reads no values.

    Not while a graph is traced for a compiler or another runtime, not for subclasses of tensors, and not where
    channels come first.
    """
    if torch.compiler.is_compiling() or not is_fused("norm"):
        return False
    if features.device.type not in _DEVICES or features.dtype not in _DTYPES or features.dim() != 5:
        return False
    num_samples, num_channels, x, y, z = features.shape
    return (
        0 < num_samples <= _MAX_SAMPLES
        and num_channels > 0
        and 1 < x * y * z <= _MAX_ROWS
        and features.is_contiguous(memory_format=torch.channels_last_3d)
        and (type(features) is torch.Tensor or type(features).__name__ == _FAKE)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and has_triton()
    )


def norm_act(
    features: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float,
    slope: float,
    launch: NormLaunch = LAUNCH,
) -> torch.Tensor:
    """Leaky ReLU of the instance norm, in the dtype and memory of `features`; statistics are float32.

    Differentiable once. Does not wait for the device; can be captured in a CUDA graph once it has run.

    Args:
        features: (b, c, x, y, z) for which `can_fuse` holds.
        weight: (c,), of any strides, or None for ones.
        bias: (c,), of any strides, or None for zeros; None together with `weight`.
        eps: added to the variance.
        slope: of the negative values, not negative: 1 leaves the norm alone, 0 is a ReLU.
        launch: how the work is divided, which changes roundings.
    """
    given = (None, None) if weight is None or bias is None else (weight.contiguous(), bias.contiguous())
    result: torch.Tensor = _NormAct.apply(features, *given, float(eps), float(slope), launch)  # type: ignore[no-untyped-call]
    return result


class InstanceNorm(nn.InstanceNorm3d):
    """torch's instance norm, up to roundings, in channels_last without copies; an activation after it may be fused."""

    def forward(self, features: torch.Tensor, activation: nn.Module | None = None) -> torch.Tensor:
        if features.shape[1] == self.num_features:
            if can_fuse(features):
                is_leaky = isinstance(activation, nn.LeakyReLU)
                slope = activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 1.0
                normed = norm_act(features, self.weight, self.bias, eps=self.eps, slope=slope)
                return normed if activation is None or is_leaky else activation(normed)
            if native_norm.knows(activation) and native_norm.can_run(features):
                return native_norm.norm_act(features, self, activation)
        normed = super().forward(features)
        if _is_last_on_cpu(features):
            normed = normed.contiguous(memory_format=torch.channels_last_3d)
        return normed if activation is None else activation(normed)


class GroupNorm(nn.GroupNorm):
    """torch's group norm, up to roundings. On a CPU, torch's own loses digits in channels_last (docs/log).

    It takes the difference of sums in float32: of 9 million voxels, values are off by up to 0.7. A C loop computes it
    where no gradient is needed, and torch with the channels first elsewhere.
    """

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not _is_last_on_cpu(features):
            return super().forward(features)
        if not torch.is_grad_enabled() and native_norm.can_run(features):
            return native_norm.group_norm(features, self)
        return super().forward(features.contiguous()).contiguous(memory_format=torch.channels_last_3d)


class BatchNorm(nn.BatchNorm3d):
    """torch's batch norm. For statistics of a batch the same holds: torch computes them with the channels first."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not (self.training or not self.track_running_stats) or not _is_last_on_cpu(features):
            return super().forward(features)
        return super().forward(features.contiguous()).contiguous(memory_format=torch.channels_last_3d)


def _is_last_on_cpu(features: torch.Tensor) -> bool:
    is_last = features.dim() == 5 and features.is_contiguous(memory_format=torch.channels_last_3d)
    return features.device.type == "cpu" and is_last and not features.is_contiguous()


class NormedSequence(nn.Sequential):
    """torch's sequence, up to roundings; fuses an activation with one of our norms before it where possible."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        norm: InstanceNorm | None = None
        for module in self:
            if norm is None and isinstance(module, InstanceNorm):
                norm = module
                continue
            features = module(features) if norm is None else norm(features, module)
            norm = None
        return features if norm is None else norm(features)


def activated(norm: nn.Module, activation: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """The activation of the norm of the features, fused where that is possible."""
    result: torch.Tensor
    result = norm(features, activation) if isinstance(norm, InstanceNorm) else activation(norm(features))
    return result


def join(features: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Both along the channels. On a CPU in channels_last the gradient of each is dense; torch is slow with others."""
    is_plain = type(features) is torch.Tensor and not torch.compiler.is_compiling()
    if is_plain and native_norm.can_run(features):
        result: torch.Tensor = _Joined.apply(features, other)  # type: ignore[no-untyped-call]
        return result
    return torch.cat((features, other), dim=1)


def use_exact_norms(network: nn.Module) -> None:
    """Makes torch's group and batch norms of a network ours, in place; names, weights and hooks stay."""
    for module in network.modules():
        for kind, own in ((nn.GroupNorm, GroupNorm), (nn.BatchNorm3d, BatchNorm)):
            if type(module) is kind:
                module.__class__ = own


def use_own_norms(network: nn.Module, *, in_sequences: bool = False) -> None:
    """Makes torch's norms of a foreign network ours, in place; names, weights and hooks stay.

    A norm whose input is contiguous stays torch's. Activations after norms stay apart, whose place only a network's own
    code knows; but in torch's sequences they follow, and with `in_sequences` they are fused there. Hooks of such an
    activation are not called.
    """
    use_exact_norms(network)
    for module in network.modules():
        if in_sequences and type(module) is nn.Sequential:
            module.__class__ = NormedSequence
        if type(module) is nn.InstanceNorm3d and not module.track_running_stats:
            module.__class__ = InstanceNorm


def possible_launches(network: nn.Module, dtype: torch.dtype) -> list[launches.Launch]:
    """What the network's norms launch for features of this dtype in channels_last, forward and backward, each once.

    Args:
        network: on any device, "meta" included.
        dtype: of the features, which is that of autocast.
    """
    norms = [module for module in network.modules() if isinstance(module, InstanceNorm)]
    forms = dict.fromkeys((*width_and_unit(norm.num_features), bool(norm.affine)) for norm in norms)
    return [found for form in forms for found in _forms(*form, dtype)]


def forward_launches(network: nn.Module, dtype: torch.dtype) -> list[launches.Launch]:
    """The same of a network that is not trained."""
    found = possible_launches(network, dtype)
    return [launch for launch in found if launch.kernel.__name__ in ("norm_measure", "norm_apply")]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        ctx.lengths = features.shape[1], other.shape[1]
        return torch.cat((features, other), dim=1)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = torch.split(dy, ctx.lengths, dim=1)
        return tuple(part.contiguous(memory_format=torch.channels_last_3d) for part in parts)


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        slope: float,
        launch: NormLaunch,
    ) -> torch.Tensor:
        division = _Division.of(x, launch)
        y = torch.empty_like(x, memory_format=torch.channels_last_3d)
        parts = division.parts(x)
        moments = torch.empty((len(x), 2, x.shape[1]), dtype=torch.float32, device=x.device)
        if type(x) is torch.Tensor:
            from voxelocity.step import triton_norm as kernels

            # Never read without a weight.
            given = (moments, moments) if weight is None else (weight, bias)
            with as_current(x.device):
                launches.launch(kernels.norm_measure, division.grid(), x, parts, *division.sizes, **division.constants)
                launches.launch(
                    kernels.norm_apply, division.grid(), x, parts, *given, y, moments, *division.sizes, eps, slope,
                    IS_AFFINE=weight is not None, **division.constants,
                )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, moments)
        ctx.slope, ctx.launch = slope, launch
        return y

    @staticmethod
    @differentiable_once("norm")
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        division, is_affine = _Division.of(x, ctx.launch), weight is not None
        dy = dy.contiguous(memory_format=torch.channels_last_3d)
        dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
        parts = division.parts(x)
        dweights = torch.empty((2, x.shape[1]), dtype=torch.float32, device=x.device)
        if type(x) is torch.Tensor:
            from voxelocity.step import triton_norm as kernels

            given = (weight, bias) if is_affine else (moments, moments)
            constants = {"IS_AFFINE": is_affine, **division.constants}
            with as_current(x.device):
                launches.launch(
                    kernels.norm_measure_back, division.grid(), x, dy, moments, *given, parts, *division.sizes,
                    ctx.slope, **constants,
                )  # fmt: skip
                launches.launch(
                    kernels.norm_apply_back, division.grid(extra=1), x, dy, moments, parts, *given, dx, dweights,
                    *division.sizes, len(x), ctx.slope, **constants,
                )  # fmt: skip
        if not is_affine:
            return dx, None, None, None, None, None
        return dx, dweights[1].to(weight.dtype), dweights[0].to(bias.dtype), None, None, None


@dataclass(frozen=True)
class _Division:
    """How a tensor is divided among programs.

    Attributes:
        num_samples: programs along the last axis of the grid.
        num_channels: of the tensor.
        num_groups: of channels, `width` each.
        num_chunks: of rows.
        sizes: arguments of all kernels: rows of a sample, rows of a chunk, units of channels.
        constants: compile-time arguments of all kernels.
    """

    num_samples: int
    num_channels: int
    num_groups: int
    num_chunks: int
    sizes: tuple[int, int, int]
    constants: dict[str, int]

    @staticmethod
    def of(x: torch.Tensor, launch: NormLaunch) -> _Division:
        num_samples, num_channels = x.shape[:2]
        num_rows = x.shape[2] * x.shape[3] * x.shape[4]
        width, unit = width_and_unit(num_channels)
        rows, num_groups = max(1, launch.tile // width), -(-num_channels // width)
        most = max(1, launch.num_programs // (num_samples * num_groups))
        size = -(-num_rows // (most * rows)) * rows
        return _Division(
            num_samples,
            num_channels,
            num_groups,
            -(-num_rows // size),
            (num_rows, size, num_channels // unit),
            _constants(width, unit, launch),
        )

    def grid(self, extra: int = 0) -> tuple[int, int, int]:
        return self.num_groups, self.num_chunks + extra, self.num_samples

    def parts(self, x: torch.Tensor) -> torch.Tensor:
        shape = (self.num_samples, self.num_chunks, 2, self.num_channels)
        return torch.empty(shape, dtype=torch.float32, device=x.device)


def width_and_unit(num_channels: int) -> tuple[int, int]:
    """Channels that a program takes, and the power of two that divides all channels, both at most 64.

    The fewer combinations, the fewer kernels are compiled: (64, 64) serves 64, 128, 256 and 320 channels.
    """
    unit = min(num_channels & -num_channels, _MAX_WIDTH)
    if num_channels < _MAX_WIDTH:
        return 1 << (num_channels - 1).bit_length(), unit
    return (unit if unit in (32, _MAX_WIDTH) else _MAX_WIDTH), unit


def _constants(width: int, unit: int, launch: NormLaunch) -> dict[str, int]:
    return {"UNIT": unit, "ROWS": max(1, launch.tile // width), "WIDTH": width, "num_warps": launch.num_warps}


def _forms(width: int, unit: int, is_affine: bool, dtype: torch.dtype) -> Iterator[launches.Launch]:
    """The four kernels; sizes and numbers stand for any others."""
    from voxelocity.step import triton_norm as kernels

    constants = _constants(width, unit, LAUNCH)
    numbers = {"num_rows": 4096, "size": 4096, "num_units": 4, "num_samples": 2, "eps": 1e-5, "slope": 0.01}
    given = {**dict.fromkeys(("x", "y", "dy", "dx"), dtype), **numbers}
    for kernel in (kernels.norm_measure, kernels.norm_apply, kernels.norm_measure_back, kernels.norm_apply_back):
        own = constants if kernel is kernels.norm_measure else constants | {"IS_AFFINE": is_affine}
        tensors = [given.get(name, torch.float32) for name in kernel.arg_names if name not in own]
        yield launches.describe_launch(kernel, tensors, own)
