"""Instance norm fused with the leaky ReLU after it, and group norm, on a CPU, by C loops in the threads of torch.

See `fused_norm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from voxelocity.core.native import NativeLoop, has_loops, thread_pool
from voxelocity.core.volume import Array
from voxelocity.step.fused import differentiable_once, is_fused

_STORED = ("float32", "uint16")
_forward = NativeLoop(
    "norm_forward",
    *("in stored", "in int64", "in float32", "in float32", "in float32", "float"),
    *("out float32", "out float32", "out stored", "int"),
    stored=_STORED,
)
_backward = NativeLoop(
    "norm_backward",
    *("in stored", "in stored", "in int64", "in float32", "in float32", "in float32", "in float32"),
    *("out float32", "out float32", "out stored", "out float32", "out float32", "int"),
    stored=_STORED,
)
_DTYPES = (torch.float32, torch.bfloat16)
# A chunk and what is made of it stay in a core's first cache.
_CHUNK = 8192
# As FakeTensor is called, which memory is counted with: importing its class would delay the first step.
_FAKE = "FakeTensor"

Activation = nn.LeakyReLU | nn.PReLU


def can_run(features: torch.Tensor) -> bool:
    """Whether `norm_act` takes these features (b, c, x, y, z); reads no values.

    Not while a graph is traced for a compiler or another runtime, and not where channels come first.
    """
    if features.device.type != "cpu" or features.dtype not in _DTYPES or features.dim() != 5:
        return False
    return (
        is_fused("norm")
        and features.numel() > 0
        and features.shape[2:].numel() > 1
        and features.is_contiguous(memory_format=torch.channels_last_3d)
        and (type(features) is torch.Tensor or type(features).__name__ == _FAKE)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and has_loops()
        and pool_of_threads() is not None
    )


def knows(activation: nn.Module | None) -> bool:
    """Whether `norm_act` does this activation too: none, a leaky ReLU, or one whose only slope is learned."""
    return activation is None or isinstance(activation, nn.LeakyReLU) or _is_of_one_slope(activation)


def _is_of_one_slope(activation: nn.Module) -> bool:
    return isinstance(activation, nn.PReLU) and activation.num_parameters == 1


def norm_act(features: torch.Tensor, norm: nn.InstanceNorm3d, activation: nn.Module | None) -> torch.Tensor:
    """The activation of the instance norm, in the dtype and memory of `features`; statistics are float32.

    Differentiable once. Results do not depend on the number of threads.

    Args:
        features: (b, c, x, y, z) for which `can_run` holds.
        norm: with or without weights; without running statistics.
        activation: one that `knows` accepts.
    """
    if activation is None:
        slope: torch.Tensor = torch.ones(1)
    elif isinstance(activation, nn.LeakyReLU):
        slope = torch.full((1,), activation.negative_slope)
    else:
        assert isinstance(activation, nn.PReLU), "known"
        slope = activation.weight
    result: torch.Tensor = _NormAct.apply(features, norm.weight, norm.bias, slope, float(norm.eps))  # type: ignore[no-untyped-call]
    return result


def group_norm(features: torch.Tensor, norm: nn.GroupNorm) -> torch.Tensor:
    """The group norm, in the dtype and memory of `features`; statistics are float32. Has no gradient.

    Args:
        features: (b, c, x, y, z) for which `can_run` holds.
        norm: with or without weights.
    """
    sizes = _Sizes(features, num_groups=norm.num_groups)
    return _normed(features, sizes, norm.weight, norm.bias, torch.ones(1), norm.eps)[0]


def memory_of(values: torch.Tensor) -> Array:
    """The memory of values (b, c, x, y, z), dense with channels first or last; of bfloat16, its bits."""
    rows = values.detach() if values.is_contiguous() else values.detach().movedim(1, -1)
    found: Array = (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).numpy()
    return found


def _line(values: torch.Tensor | None, length: int, fill: float) -> Array:
    found: Array = (torch.full((length,), fill) if values is None else values.detach().float().contiguous()).numpy()
    return found


class _Sizes:
    """How features are divided into chunks; does not depend on threads."""

    def __init__(self, features: torch.Tensor, *, num_groups: int = 0) -> None:
        self.batch, self.channels = features.shape[:2]
        self.groups = num_groups or self.channels
        self.rows = features.shape[2:].numel()
        self.size = max(1, _CHUNK // self.channels)
        self.chunks = -(-self.rows // self.size)

    def array(self) -> Array:
        found: Array = torch.tensor([self.batch, self.rows, self.channels, self.size, self.groups]).numpy()
        return found


def pool_of_threads() -> int | None:
    """The pool that loops share their work in, 0 for the caller alone, None if torch's threads are out of reach."""
    # Asking also gives this thread torch's number of threads, if it has not computed yet.
    return 0 if torch.get_num_threads() == 1 else thread_pool() or None


def _normed(
    x: torch.Tensor,
    sizes: _Sizes,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    slope: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The activation of the norm, and means and 1 / deviations (b, 2, channels); not filled if `x` has no values."""
    y = torch.empty_like(x, memory_format=torch.channels_last_3d)
    moments = x.new_empty((sizes.batch, 2, sizes.channels), dtype=torch.float32)
    if type(x) is torch.Tensor:
        parts = torch.empty((sizes.batch, sizes.chunks, 2, sizes.channels)).numpy()
        given = _line(weight, sizes.channels, 1.0), _line(bias, sizes.channels, 0.0), _line(slope, 1, 1.0)
        _forward(memory_of(x), sizes.array(), *given, eps, parts, moments.numpy(), memory_of(y), pool_of_threads())
    return y, moments


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        slope: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        y, moments = _normed(x, _Sizes(x), weight, bias, slope, eps)
        ctx.save_for_backward(x, weight, bias, slope, moments)
        return y

    @staticmethod
    @differentiable_once("norm")
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, slope, moments = ctx.saved_tensors
        sizes = _Sizes(x)
        dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last_3d)
        dx = torch.empty_like(x, memory_format=torch.channels_last_3d)
        of_weights, of_slope = torch.empty((2, sizes.channels)), torch.empty(1)
        if type(x) is torch.Tensor:
            parts = torch.empty((sizes.batch, sizes.chunks, 3, sizes.channels)).numpy()
            means = torch.empty((sizes.batch, 2, sizes.channels)).numpy()
            given = _line(weight, sizes.channels, 1.0), _line(bias, sizes.channels, 0.0), _line(slope, 1, 1.0)
            _backward(
                *(memory_of(x), memory_of(dy), sizes.array(), moments.numpy(), *given, parts, means),
                *(memory_of(dx), of_weights.numpy(), of_slope.numpy(), pool_of_threads()),
            )
        is_affine = weight is not None
        return (
            dx,
            of_weights[1].to(weight.dtype) if is_affine else None,
            of_weights[0].to(bias.dtype) if is_affine else None,
            of_slope.to(slope.dtype) if ctx.needs_input_grad[3] else None,
            None,
        )
