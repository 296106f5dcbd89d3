"""The losses of `loss` on a CPU in two passes over the logits, by C loops in the threads of torch: what they take."""

from __future__ import annotations

from typing import Any

import torch

from voxelocity.core.cases import MAX_CLASSES
from voxelocity.core.native import NativeLoop, has_loops
from voxelocity.core.volume import Array
from voxelocity.step.fused import differentiable_once, is_fused
from voxelocity.step.loss_table import LOSSES, LossConfig, share_of_positives
from voxelocity.step.native_norm import memory_of, pool_of_threads

_STORED = ("float32", "uint16")
_sums = NativeLoop("loss_sums", "in stored", "in any", "in int64", "out float64", "out float64", "int", stored=_STORED)
_gradient = NativeLoop(
    "loss_gradient",
    *("in stored", "in any", "in int64", "in float32", "in float32", "out stored", "int"),
    stored=_STORED,
)
_DTYPES = (torch.float32, torch.bfloat16)
_LABEL_DTYPES = (torch.uint8, torch.int32)
# No label has it.
_NO_INDEX = -(2**40)
# Of a part of the work, as in `loss.c`.
_PART = 16384


def has_loop(config: LossConfig, num_regions: int) -> bool:
    """Whether the loops compute this loss here, whatever the tensors."""
    term = LOSSES[config.name].of_voxels
    is_known = term is None or term.kernel == "ENTROPY"
    return is_fused("loss") and is_known and not num_regions and config.boundary_weight == 0.0 and has_loops()


def can_run(logits: torch.Tensor, label: torch.Tensor, config: LossConfig, num_regions: int) -> bool:
    """Whether the loops can and may compute this loss; reads no values. Not while torch traces its operations."""
    return (
        type(logits) in (torch.Tensor, torch.nn.Parameter)
        and type(label) is torch.Tensor
        and logits.device.type == label.device.type == "cpu"
        and logits.dtype in _DTYPES
        and label.dtype in _LABEL_DTYPES
        and label.shape == (logits.shape[0], *logits.shape[2:])
        and logits.numel() > 0
        and logits.shape[1] <= MAX_CLASSES
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and pool_of_threads() is not None
        and has_loop(config, num_regions)
    )


def sums(
    logits: torch.Tensor, label: torch.Tensor, config: LossConfig, ignored: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sizes of overlaps (2, b, k), the mean loss of a voxel, and over how many voxels it is; all float32.

    For logits (b, k, x, y, z) and labels (b, x, y, z) that `can_run` takes. Results do not depend on the number of
    threads, and memory besides the gradient is some sums of each part.

    Raises:
        ValueError: a voxel that counts has a label that is not a class, and the loss has a mean over voxels.
    """
    is_last = not logits.is_contiguous() and logits.movedim(1, -1).is_contiguous()
    made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _Sums.apply(  # type: ignore[no-untyped-call]
        logits if is_last else logits.contiguous(),
        label.contiguous(),
        config,
        _NO_INDEX if ignored is None else ignored,
    )
    return made


def _sizes(logits: torch.Tensor, label: torch.Tensor, config: LossConfig, ignored: int, num_sums: int = 0) -> Array:
    batch, classes, voxels = len(logits), logits.shape[1], logits.shape[2:].numel()
    steps = (1, voxels) if logits.is_contiguous() else (classes, 1)
    has_term = LOSSES[config.name].of_voxels is not None
    found: Array = torch.tensor(
        [batch, classes, voxels, *steps, ignored, int(has_term), num_sums, label.element_size()]
    ).numpy()
    return found


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, label: torch.Tensor, config: LossConfig, ignored: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, classes, voxels = len(logits), logits.shape[1], logits.shape[2:].numel()
        parts = torch.empty(batch, -(-voxels // _PART), 3 * classes + 2, dtype=torch.float64)
        made = torch.empty(batch, 3 * classes + 2, dtype=torch.float64)
        sizes = _sizes(logits, label, config, ignored, parts.numel())
        _sums(memory_of(logits), label.numpy(), sizes, parts.numpy(), made.numpy(), pool_of_threads())
        agreed, predicted, true = made[:, :-2].view(batch, 3, classes).unbind(1)
        alpha = share_of_positives(config)
        known = made[:, -1].sum()
        weight = known.clamp_min(1.0).reciprocal() * (LOSSES[config.name].of_voxels is not None)
        context.save_for_backward(logits, label, weight)
        context.config, context.ignored = config, ignored
        mean, known = (made[:, -2].sum() * weight).float(), known.float()
        context.mark_non_differentiable(known)
        return torch.stack([agreed, 2.0 * (alpha * predicted + (1.0 - alpha) * true)]).float(), mean, known

    @staticmethod
    @differentiable_once("loss")
    def backward(
        context: Any, of_sizes: torch.Tensor, of_mean: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        logits, label, weight = context.saved_tensors
        gradient = torch.empty_like(logits)
        alpha = share_of_positives(context.config)
        factors = torch.stack([of_sizes[0], 2.0 * alpha * of_sizes[1]], dim=1).contiguous()
        sizes = _sizes(logits, label, context.config, context.ignored)
        factor = (of_mean * weight).float().reshape(1)
        _gradient(
            *(memory_of(logits), label.numpy(), sizes, factors.numpy(), factor.numpy()),
            *(memory_of(gradient), pool_of_threads()),
        )
        return gradient, None, None, None
