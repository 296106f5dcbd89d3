"""How weights follow gradients: the learning rate over a run, an optimizer and its state, the average of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.step.optimizer_table import OPTIMIZERS, OptimizerConfig

if TYPE_CHECKING:
    from voxelocity.parallel import Sharding


class ScheduleConfig(Config):
    """Linear warm-up, then decay to zero at the end of the run."""

    warmup_share: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the run over which the learning rate rises from zero to its peak."""
    decay: Literal["poly", "cosine", "constant"] = "poly"
    """How it falls afterwards."""
    poly_power: float = Field(default=0.9, gt=0.0)
    """Exponent of the poly decay (0.9 as in nnU-Net)."""
    frozen_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the run in which the way down of the network keeps the weights of the model that the run starts from,
    while the rest begins to learn; 0 trains all weights throughout."""


def learning_rate_at(progress: float, *, peak: float, config: ScheduleConfig) -> float:
    """The learning rate when `progress` (0 to 1) of the run is done, by steps or by the time of a budget alike."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < config.warmup_share:
        # With this minimum, the very first step still trains.
        return peak * max(progress / config.warmup_share, 0.01)
    rest = (progress - config.warmup_share) / (1.0 - config.warmup_share)
    if config.decay == "constant":
        return peak
    if config.decay == "cosine":
        return float(peak * 0.5 * (1.0 + math.cos(math.pi * rest)))
    return float(peak * (1.0 - rest) ** config.poly_power)


def build_optimizer(
    config: OptimizerConfig,
    parameters: Iterable[torch.nn.Parameter],
    *,
    sharding: Sharding | None = None,
    learning_rate: torch.Tensor | None = None,
) -> torch.optim.Optimizer:
    """The optimizer; torch's use their fused implementation: one kernel (CPU: one pass) for all parameters.

    Decoupled decay skips biases and the scales of norms; SGD's L2 penalty covers all, as in nnU-Net.

    Args:
        config: which one.
        parameters: of the whole network, in its order.
        sharding: which of them, or what of them, this rank trains; all if not given.
        learning_rate: a scalar on the device that each step reads, so that steps can be recorded; without it, the
            number in each group counts.
    """
    rate, kind = config.learning_rate if learning_rate is None else learning_rate, OPTIMIZERS[config.name]
    listed = list(parameters)
    own: Sequence[torch.nn.Parameter | None] = listed if sharding is None else sharding.trained()
    # Which group a parameter is in follows from the whole network.
    groups = [
        {**settings, "params": [part for number in numbers if (part := own[number]) is not None]}
        for numbers, settings in kind.group(config, listed)
    ]
    # Ours are used like torch's without being one.
    return cast(torch.optim.Optimizer, kind.build(config, groups, rate, sharding))


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Begins the momentum of torch's SGD with zeros, which give the same first step; does nothing for others.

    torch's fused SGD refuses weights with momentum next to others without, which were held until now. And where the
    first step is left out because float16 overflowed, it keeps momentum that it never set: whatever the memory held.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        for weight in group["params"] if group["momentum"] else ():
            if weight.grad is not None and "momentum_buffer" not in optimizer.state[weight]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def saved_settings(state: dict[str, Any], learning_rate: float) -> dict[str, Any]:
    """An optimizer's state as one that reads its learning rate from the host has it: checkpoints are of that form."""
    groups = [
        {**group, "lr": learning_rate, **({"capturable": False} if "capturable" in group else {})}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


def load_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any], learning_rate: torch.Tensor) -> None:
    """Loads a state of that form into an optimizer that reads its learning rate from this tensor."""
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        if "capturable" in group:
            group["capturable"] = True


def whole_state(
    own: torch.optim.Optimizer, sharding: Sharding, whole: torch.optim.Optimizer, blank: torch.nn.Module
) -> dict[str, Any]:
    """The state of an optimizer for the whole network, as if one process had it. Called by all ranks.

    Args:
        own: of what this rank trains.
        sharding: how the network is distributed.
        whole: of the parameters of `blank`.
        blank: the whole network.
    """
    state = own.state_dict()
    collected = sharding.collect(_by_name(state, own, sharding.own))
    return _filled(whole, blank, groups=state["param_groups"], by_name=collected)


def own_state(
    state: dict[str, Any],
    own: torch.optim.Optimizer,
    sharding: Sharding,
    whole: torch.optim.Optimizer,
    blank: torch.nn.Module,
) -> dict[str, Any]:
    """The reverse of `whole_state`."""
    selected = sharding.select(_by_name(state, whole, blank))
    return _filled(own, sharding.own, groups=state["param_groups"], by_name=selected)


def _by_name(
    state: dict[str, Any], optimizer: torch.optim.Optimizer, network: torch.nn.Module
) -> dict[str, dict[str, torch.Tensor]]:
    """What an optimizer keeps of each parameter; nothing of those that had no step yet."""
    kept = state["state"]
    return {
        name: (kept.get(number, {}) if isinstance(kept, dict) else kept[number])
        for number, name in enumerate(_names(optimizer, network))
    }


def _filled(
    optimizer: torch.optim.Optimizer,
    network: torch.nn.Module,
    *,
    groups: Sequence[dict[str, Any]],
    by_name: Mapping[str, dict[str, torch.Tensor]],
) -> dict[str, Any]:
    """The optimizer's state with this content."""
    state = optimizer.state_dict()
    for group, found in zip(state["param_groups"], groups, strict=True):
        group.update({key: value for key, value in found.items() if key != "params"})
    kept = [by_name[name] for name in _names(optimizer, network)]
    in_dict = {number: found for number, found in enumerate(kept) if found}
    return {**state, "state": in_dict if isinstance(state["state"], dict) else kept}


def _names(optimizer: torch.optim.Optimizer, network: torch.nn.Module) -> list[str]:
    """Of the optimizer's parameters, in its order."""
    name_of = {id(parameter): name for name, parameter in network.named_parameters()}
    return [name_of[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


class RunningAverage:
    """A copy of a network whose weights follow it slowly. Counting is on the host, so the device never waits.

    Validation and prediction may use it instead of the network itself.

    Attributes:
        network: the average; before the first `update`, the copied network.
        num_averaged: updates so far.
    """

    def __init__(self, network: torch.nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network)
        self._decay = decay
        self.num_averaged = 0

    def next_weight(self) -> float:
        """The weight of the network in the next update."""
        # At first, nearly a plain mean over the steps so far, so that the random initial weights do not linger.
        return 1.0 - min((1.0 + self.num_averaged) / (10.0 + self.num_averaged), self._decay)

    def update(self, network: torch.nn.Module) -> None:
        """Moves the average toward the network. What cannot be averaged, such as a count of batches, is copied."""
        self.follow(network, self.next_weight())
        self.num_averaged += 1

    @torch.no_grad()
    def follow(self, network: torch.nn.Module, weight: float | torch.Tensor) -> None:
        """As `update`, but without counting, with a weight that may be a scalar tensor on the device."""
        own_tensors, tensors = ([*module.parameters(), *module.buffers()] for module in (self.network, network))
        pairs = list(zip(own_tensors, tensors, strict=True))
        is_first = self.num_averaged == 0
        averaged = [pair for pair in pairs if pair[0].is_floating_point() and not is_first]
        copied = [pair for pair in pairs if is_first or not pair[0].is_floating_point()]
        if averaged:
            old, current = [own for own, _ in averaged], [new for _, new in averaged]
            if isinstance(weight, torch.Tensor):
                # torch's linear interpolation takes no single weight from the device.
                changes = torch._foreach_sub(current, old)
                torch._foreach_mul_(changes, weight)
                torch._foreach_add_(old, changes)
            else:
                torch._foreach_lerp_(old, current, weight)
        for own, new in copied:
            own.copy_(new)
