"""The loss of a whole batch for a pipeline's schedule, which asks for one of each piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from voxelocity_observe.spans import span

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits and labels of a whole batch to a scalar."""


class WholeLoss:
    """The loss of a whole batch, for a schedule that asks for one of each piece.

    GPipe asks for the losses of all pieces before it propagates the first of them back, so the true loss is computed
    at the last of them, and each piece then gets its part of the gradient.
    """

    def begin(
        self, label: torch.Tensor, loss: Loss, *, num_patches: int, num_pieces: int, size: int, is_late: bool
    ) -> None:
        """For the next batch: `size` patches a piece, of which the first `num_patches` of all count."""
        self._label, self._loss, self._num_patches = label, loss, num_patches
        self._num_pieces, self._size, self._is_late = num_pieces, size, is_late
        self._pieces: dict[int, _Piece] = {}
        self._values: dict[int, torch.Tensor] = {}

    def __call__(self, logits: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        index = int(number)
        start = index * self._size
        num_real = max(0, min(self._size, self._num_patches - start))
        if not self._is_late:
            label = self._label[start : start + num_real].to(logits.device)
            value = (
                self._loss(logits[:num_real], label) * (num_real / self._num_patches) if num_real else 0 * logits.sum()
            )
            self._values[index] = value.detach()
            return value
        piece = _Piece(logits.detach()[:num_real])
        self._pieces[index] = piece
        # Before its first step, torch asks for the loss of the first piece once more, to learn shapes.
        if index == self._num_pieces - 1:
            self._propagate()
        scalar: torch.Tensor = _Late.apply(logits, piece)  # type: ignore[no-untyped-call]
        return scalar

    def result(self) -> torch.Tensor:
        return torch.stack(list(self._values.values())).sum()

    def _propagate(self) -> None:
        pieces = [self._pieces[index] for index in sorted(self._pieces)]
        with span("loss", color="lightgreen"), torch.enable_grad():
            logits = torch.cat([piece.logits for piece in pieces]).requires_grad_()
            value = self._loss(logits, self._label.to(logits.device))
            (slope,) = torch.autograd.grad(value, logits)
        self._values = {0: value.detach()}
        for piece, part in zip(pieces, torch.split(slope, [len(piece.logits) for piece in pieces]), strict=True):
            piece.slope = part


class _Piece:
    """Logits of a piece, and later the gradient of the loss with respect to them."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.slope: torch.Tensor | None = None


class _Late(torch.autograd.Function):
    """A scalar whose gradient is known only when it is asked for."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, piece: _Piece) -> torch.Tensor:
        context.piece, context.shape = piece, logits.shape
        return logits.new_zeros(())

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        slope = context.piece.slope
        whole = gradients[0].new_zeros(context.shape) if slope is None else slope.new_zeros(context.shape)
        if slope is not None:
            whole[: len(slope)] = slope
        return whole * gradients[0], None
