"""A running average of weights, which validation and prediction may use instead of the weights themselves."""

from __future__ import annotations

import copy
from typing import Any

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


class RunningAverage:
    """A copy of a network whose weights follow it slowly. Counting is on the host, so the device never waits.

    Attributes:
        network: the average; before the first `update`, the copied network.
    """

    def __init__(self, network: torch.nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network)
        self._decay = decay
        self._num_averaged = 0

    @torch.no_grad()
    def update(self, network: torch.nn.Module) -> None:
        """Moves the average toward the network. What cannot be averaged, such as a count of batches, is copied."""
        pairs = list(zip(_tensors(self.network), _tensors(network), strict=True))
        averaged, copied = _split(pairs)
        if self._num_averaged == 0:
            averaged, copied = [], pairs
        if averaged:
            # At first, nearly a plain mean over the steps so far, so that the random initial weights do not linger.
            weight = 1.0 - min((1.0 + self._num_averaged) / (10.0 + self._num_averaged), self._decay)
            torch._foreach_lerp_([own for own, _ in averaged], [new for _, new in averaged], weight)
        for own, new in copied:
            own.copy_(new)
        self._num_averaged += 1

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors, under the names of torch's AveragedModel, which earlier checkpoints use."""
        weights = {f"module.{name}": tensor for name, tensor in self.network.state_dict().items()}
        return {"n_averaged": torch.tensor(self._num_averaged), **weights}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues exactly from a saved `state`."""
        self._num_averaged = int(state["n_averaged"])
        weights = {name.removeprefix("module."): tensor for name, tensor in state.items() if name != "n_averaged"}
        self.network.load_state_dict(weights)


def _tensors(network: torch.nn.Module) -> list[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]


def _split(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs of floating-point tensors, and the others."""
    floating = [pair for pair in pairs if pair[0].is_floating_point()]
    return floating, [pair for pair in pairs if not pair[0].is_floating_point()]
