"""Where the tensors of a network are while ranks train it: a copy on each, or as `distributed` has them.

A training step, its optimizer and its checkpoints work on the tensors of one rank; what they know of others is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from voxelocity.parallel.world import World

Named = dict[str, dict[str, torch.Tensor]]
"""For each tensor of a network, by its name, tensors that belong to it: its value, or the state of its optimizer."""


class Sharding:
    """A network of which each rank trains a copy, or one process all of it. Methods are called by all ranks.

    Attributes:
        module: what a step calls with its patches.
        own: the parameters and buffers that this rank trains, without those of other ranks.
        blank: a network for the whole state, in main memory; None where `own` is whole.
        takes_shares: whether each rank takes a share of the patches of a batch; if not, rank 0 takes all of them.
        is_plain: whether `module` computes as the network does, but for the exchange; torch.compile needs that.

    Args:
        network: equal on all ranks, on the device.
        world: the ranks.
        bucket_mb: of gradients, exchanged at once.
        computed: the same parameters, computed in another way than the network does.
    """

    blank: nn.Module | None = None
    takes_shares = True
    is_plain = True

    def __init__(
        self, network: nn.Module, world: World, *, bucket_mb: float = 25.0, computed: nn.Module | None = None
    ) -> None:
        self.own = network
        self.module = world.wrap_network(network if computed is None else computed, bucket_mb=bucket_mb)
        self.is_plain = computed is None
        self._world = world

    def trained(self) -> list[nn.Parameter | None]:
        """For each parameter of the network, in its order, what this rank trains of it."""
        return list(self.own.parameters())

    def drop_gradients(self) -> None:
        """Frees the gradients of the last step."""
        for parameter in self.module.parameters():
            parameter.grad = None

    def take_gradients(self) -> None:
        """Gives `own` the gradients of the backward pass."""

    def clip(self, max_norm: float) -> None:
        """Scales the gradients down to this norm of all of them, if they exceed it."""
        parameters = list(self.own.parameters())
        if self.blank is None:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            return
        slopes = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares = torch.stack([slope.float().square().sum() for slope in slopes]).sum()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, self._world.total(squares).sqrt())

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite, on any rank. Waits for the device."""
        found = bool(self.finite_flag())
        return found if self.blank is None else not self._world.agree([], flag=not found)[1]

    def finite_flag(self) -> torch.Tensor:
        """Whether no weight of this rank is NaN or infinite, as a scalar on the device."""
        norms = torch._foreach_norm([weight.detach() for weight in self.own.parameters()])
        return torch.stack(norms).isfinite().all()

    def gather_weights(self, weights: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Values of these weights of `own`, whole."""
        return list(values)

    def part(self, weight: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """The part of a whole value that belongs to this weight of `own`."""
        return whole

    def collect(self, values: Named) -> Named:
        """For names in `own`: the same for the names of the whole network, in main memory if other ranks have parts."""
        return values

    def select(self, values: Mapping[str, Mapping[str, torch.Tensor]]) -> Named:
        """The reverse of `collect`, without an exchange."""
        return {name: dict(inner) for name, inner in values.items()}
