"""How weights follow gradients: the learning rate over a run, optimizers by name, and the average of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.step.own_optimizers import Muon, NovoGrad

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


class OptimizerConfig(Config):
    """How weights follow gradients."""

    name: Literal["sgd", "adamw", "muon", "novograd"]
    """SGD with Nesterov momentum (nnU-Net's choice), AdamW, Muon for the inner convolutions with AdamW for the rest, or
    NovoGrad."""
    learning_rate: float = Field(gt=0.0, le=10.0)
    """Peak of the schedule."""
    weight_decay: float = Field(default=3e-5, ge=0.0, le=1.0)
    """L2 penalty (SGD) or decoupled decay (AdamW, Muon, NovoGrad)."""
    momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Momentum of SGD and Muon (which usually has 0.95); ignored by AdamW."""
    second_momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Momentum of squared gradients (AdamW, NovoGrad); torch's 0.999 covers a thousand steps, more than a short run
    has."""
    clip_norm: float = Field(default=12.0, gt=0.0)
    """Gradients are scaled down to this norm if they exceed it (12 as in nnU-Net)."""
    average_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of the running average of the weights that validation and prediction use; 0 uses the weights themselves."""


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
    rate = config.learning_rate if learning_rate is None else learning_rate
    listed = list(parameters)
    own: Sequence[torch.nn.Parameter | None] = listed if sharding is None else sharding.trained()
    # Which group a parameter is in follows from the whole network.
    groups = [
        {**settings, "params": [one for number in numbers if (one := own[number]) is not None]}
        for numbers, settings in _groups(config, listed)
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=config.momentum > 0.0, fused=True)
    betas = (0.9, config.second_momentum)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True, capturable=learning_rate is not None)
    if config.name == "novograd":
        return cast(torch.optim.Optimizer, NovoGrad(groups, learning_rate=rate, betas=betas))
    muon = Muon(groups, learning_rate=rate, momentum=config.momentum, betas=betas, sharding=sharding)
    return cast(torch.optim.Optimizer, muon)


def _groups(
    config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]
) -> list[tuple[list[int], dict[str, Any]]]:
    """The indices of the parameters of each group, and its settings."""
    everything, decay = range(len(parameters)), config.weight_decay
    if config.name == "sgd":
        return [([*everything], {"weight_decay": decay})]
    decayed = [number for number in everything if parameters[number].ndim > 1]
    if config.name == "muon":
        # The first and the last see the image and make the logits: there AdamW learns faster.
        decayed = decayed[1:-1]
    others = sorted(set(everything) - set(decayed))
    kinds = ({"is_matrix": True}, {"is_matrix": False}) if config.name == "muon" else ({}, {})
    return [(decayed, {**kinds[0], "weight_decay": decay}), (others, {**kinds[1], "weight_decay": 0.0})]


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Begins the momentum of torch's SGD with zeros, which give the same first step; does nothing for others.

    Where the first step is left out because float16 overflowed, torch's fused SGD keeps momentum that it never set:
    whatever the memory held.
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
