"""The sums of a loss over many classes by torch's operations, some classes at a time, on any device.

Besides the logits and their gradient, memory holds planes of a few classes, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from voxelocity.step.fused import differentiable_once
from voxelocity.step.loss_table import LOSSES, LossConfig, share_of_positives

_CLASSES_AT_ONCE = 16

Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of each patch and class, the voxels on which prediction and truth agree and twice their mean size, (2, b, k); the
mean loss of a voxel; over how many voxels it is."""


def many_class_sums(
    logits: torch.Tensor, label: torch.Tensor, is_known: torch.Tensor | None, config: LossConfig
) -> Sums:
    """The sizes of overlaps (2, b, k), the mean loss of a voxel, and over how many voxels it is; all float32.

    Args:
        logits: (b, k, x, y, z), of classes that exclude each other.
        label: (b, x, y, z) class indices of any integer type.
        is_known: (b, x, y, z) bool, the voxels that count; None if all do.
        config: which loss, without a boundary term.
    """
    # Any class will do for a voxel that does not count.
    target = (label if is_known is None else label * is_known).long()
    known = torch.ones_like(label, dtype=torch.bool) if is_known is None else is_known
    agreed, predicted, log_right = _ClassSums.apply(  # type: ignore[no-untyped-call]
        logits.flatten(2), target.flatten(1), known.flatten(1)
    )
    true = torch.zeros_like(agreed, dtype=torch.int64).scatter_add_(1, target.flatten(1), known.flatten(1).long())
    alpha, term = share_of_positives(config), LOSSES[config.name].of_voxels
    mean = log_right.new_zeros(())
    if term is not None:
        # As of a single class, which is the right one everywhere.
        of_right = log_right.view(label.shape).unsqueeze(1)
        mean = term.exclusive(of_right, torch.zeros_like(target), is_known, config)
    sizes = torch.stack([agreed, 2.0 * (alpha * predicted + (1.0 - alpha) * true)])
    return sizes, mean, known.sum().float()


class _ClassSums(torch.autograd.Function):
    """Of logits (b, k, v): the probability of each class where it is right and in all known voxels, both (b, k), and
    the logarithm of that of the right class (b, v)."""

    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, target: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_total = _log_total(logits)
        agreed = torch.zeros(logits.shape[:2], dtype=torch.float32, device=logits.device)
        predicted = torch.zeros_like(agreed)
        for part, classes in _parts(logits):
            probability = (logits[:, part].float() - log_total).exp() * known.unsqueeze(1)
            predicted[:, part] = probability.sum(2)
            agreed[:, part] = torch.where(target.unsqueeze(1) == classes, probability, 0.0).sum(2)
        context.save_for_backward(logits, target, known, log_total)
        return agreed, predicted, logits.gather(1, target.unsqueeze(1)).squeeze(1).float() - log_total.squeeze(1)

    @staticmethod
    @differentiable_once("loss")
    def backward(
        context: Any, of_agreed: torch.Tensor, of_predicted: torch.Tensor, of_right: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        logits, target, known, log_total = context.saved_tensors
        gradient, mean_slope = torch.empty_like(logits), torch.zeros_like(log_total)

        def slopes(part: slice, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """Probabilities, which class is right, and what the sums owe each probability, (b, some, v)."""
            is_class = target.unsqueeze(1) == classes
            slope = of_predicted[:, part, None] + torch.where(is_class, of_agreed[:, part, None], 0.0)
            return (logits[:, part].float() - log_total).exp(), is_class, slope * known.unsqueeze(1)

        for part, classes in _parts(logits):
            probability, _, slope = slopes(part, classes)
            mean_slope += (probability * slope).sum(1, keepdim=True)
        for part, classes in _parts(logits):
            probability, is_class, slope = slopes(part, classes)
            of_class = probability * (slope - mean_slope) + of_right.unsqueeze(1) * (is_class.float() - probability)
            gradient[:, part] = of_class
        return gradient, None, None


def _parts(logits: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """A few classes at a time, with their indices (some, 1)."""
    indices = torch.arange(logits.shape[1], device=logits.device).unsqueeze(1)
    for start in range(0, logits.shape[1], _CLASSES_AT_ONCE):
        part = slice(start, start + _CLASSES_AT_ONCE)
        yield part, indices[part]


def _log_total(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of exponentials of all classes (b, 1, v), float32."""
    largest = logits.amax(1, keepdim=True).float()
    total = torch.zeros_like(largest)
    for part, _ in _parts(logits):
        total += (logits[:, part].float() - largest).exp().sum(1, keepdim=True)
    return largest + total.log()
