"""How weights follow gradients: the learning rate over a run, optimizers by name, Muon, and the average of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from pydantic import Field

from voxelocity.core.config import Config

if TYPE_CHECKING:
    from voxelocity.parallel import Sharding

# Of Muon. The polynomial a x + b x^3 + c x^5 brings singular values between 0 and 1 close to 1 in a few iterations.
_ITERATIONS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
_EPS = 1e-8
# A step as large as AdamW's usual one (Liu et al. 2025, arXiv 2502.16982), so that AdamW's learning rates apply.
_RMS = 0.2
# About 10 ms in one thread; in a step it then took 15 ms, and 31 and 43 ms with two threads (docs/log.md).
_FEW_PRODUCTS = 3e8


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

    name: Literal["sgd", "adamw", "muon"]
    """SGD with Nesterov momentum (nnU-Net's choice), AdamW, or Muon for the inner convolutions with AdamW for the
    rest."""
    learning_rate: float = Field(gt=0.0, le=10.0)
    """Peak of the schedule."""
    weight_decay: float = Field(default=3e-5, ge=0.0, le=1.0)
    """L2 penalty (SGD) or decoupled decay (AdamW, Muon)."""
    momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Momentum of SGD and Muon (which usually has 0.95); ignored by AdamW."""
    second_momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Momentum of AdamW's squared gradients; torch's 0.999 covers a thousand steps, more than a short run has."""
    clip_norm: float = Field(default=12.0, gt=0.0)
    """Gradients are scaled down to this norm if they exceed it (12 as in nnU-Net)."""
    average_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of the running average of the weights that validation and prediction use; 0 uses the weights themselves."""


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter], *, sharding: Sharding | None = None
) -> torch.optim.Optimizer:
    """The optimizer; torch's use their fused implementation: one kernel (CPU: one pass) for all parameters.

    AdamW's and Muon's decay skip biases and the scales of norms; SGD's L2 penalty covers all, as in nnU-Net.

    Args:
        config: which one.
        parameters: of the whole network, in its order.
        sharding: which of them, or what of them, this rank trains; all if not given.
    """
    listed = list(parameters)
    own: Sequence[torch.nn.Parameter | None] = listed if sharding is None else sharding.trained()
    # Which group a parameter is in follows from the whole network.
    groups = [
        {**settings, "params": [one for number in numbers if (one := own[number]) is not None]}
        for numbers, settings in _groups(config, listed)
    ]
    if config.name == "sgd":
        return torch.optim.SGD(
            groups, lr=config.learning_rate, momentum=config.momentum, nesterov=config.momentum > 0.0, fused=True
        )
    betas = (0.9, config.second_momentum)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)
    muon = Muon(groups, learning_rate=config.learning_rate, momentum=config.momentum, betas=betas, sharding=sharding)
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


class Muon:
    """Steps along the momentum with all its singular values made equal; AdamW for the rest, such as biases and norms.

    A weight (out, in, x, y, z) is a matrix (out, in * x * y * z). See Jordan et al. 2024,
    kellerjordan.github.io/posts/muon. torch's own class takes only matrices and always computes in bfloat16; a test
    compares the two. This class is used like torch's optimizers without being one of them: creating one of theirs
    imports torch's compiler, which would delay training by 2 s.

    Args:
        groups: with "params", "weight_decay" (decoupled) and "is_matrix", which says whether they are matrices.
        learning_rate: of all parameters.
        momentum: Nesterov momentum of matrices.
        betas: of AdamW.
        sharding: as for `build_optimizer`. Each rank computes the steps of all matrices of which it has a shard.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        learning_rate: float,
        momentum: float,
        betas: tuple[float, float],
        sharding: Sharding | None = None,
    ) -> None:
        shared = {"lr": learning_rate, "momentum": momentum, "betas": betas, "num_steps": 0}
        self.param_groups: list[dict[str, Any]] = [{**group, **shared} for group in groups]
        self._sharding = sharding
        self._state: dict[torch.Tensor, dict[str, torch.Tensor]] = {p: {} for p in self._parameters()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or sets them to zero."""
        for weight in self._parameters():
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` continues from: the groups without their parameters, the state of each parameter."""
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"param_groups": groups, "state": [self._state[p] for p in self._parameters()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues exactly from a saved state of the same parameters."""
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group.update(saved)
        for weight, kept in zip(self._parameters(), state["state"], strict=True):
            self._state[weight] = {name: torch.empty_like(weight).copy_(value) for name, value in kept.items()}

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """One step for all parameters that have a gradient."""
        with _few_threads(self.param_groups[0]["params"]):
            self._step_groups()

    def _step_groups(self) -> None:
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            group["num_steps"] += 1
            if trained:
                (self._step_matrices if group["is_matrix"] else self._step_others)(group, trained)

    def _step_matrices(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        slopes, means = _slopes(weights), self._kept("mean", weights)
        torch._foreach_lerp_(means, slopes, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(slopes, means, group["momentum"])
        torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
        whole = ahead if self._sharding is None else self._sharding.gathered(weights, ahead)
        steps = orthogonal([one.flatten(1) for one in whole])
        for weight, step, like in zip(weights, steps, whole, strict=True):
            change = step.reshape(like.shape)
            own = change if self._sharding is None else self._sharding.part(weight, change)
            weight.add_(own, alpha=-group["lr"] * _RMS * max(step.shape) ** 0.5)

    def _step_others(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        slopes, means, squares = _slopes(weights), self._kept("mean", weights), self._kept("square", weights)
        first, second = group["betas"]
        torch._foreach_lerp_(means, slopes, 1.0 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, slopes, slopes, 1.0 - second)
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_div_(sizes, (1.0 - second ** group["num_steps"]) ** 0.5)
        torch._foreach_add_(sizes, _EPS)
        torch._foreach_addcdiv_(weights, means, sizes, -group["lr"] / (1.0 - first ** group["num_steps"]))

    def _kept(self, name: str, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        for weight in weights:
            if name not in self._state[weight]:
                self._state[weight][name] = torch.zeros_like(weight)
        return [self._state[weight][name] for weight in weights]


def orthogonal(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Matrices with their singular values brought to about 0.7 to 1.2, by Newton and Schulz's iteration.

    Each iteration multiplies a matrix by a polynomial of its Gram matrix from the left. So all iterations work on that
    small square matrix, batched by size, and each matrix is multiplied once: a third of the time (docs/log.md).
    """
    wide = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in matrices]
    sizes = torch._foreach_norm(wide)
    torch._foreach_clamp_min_(sizes, 1e-7)
    wide = list(torch._foreach_div(wide, sizes))
    alike: dict[int, list[int]] = {}
    for number, matrix in enumerate(wide):
        alike.setdefault(len(matrix), []).append(number)
    for numbers in alike.values():
        factors = _factors(torch.stack([wide[number] @ wide[number].mT for number in numbers]))
        for number, factor in zip(numbers, factors, strict=True):
            wide[number] = factor @ wide[number]
    return [own.mT if matrix.shape[0] > matrix.shape[1] else own for own, matrix in zip(wide, matrices, strict=True)]


@contextmanager
def _few_threads(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Uses one thread for small matrices on a CPU: with two, each product waited for the core making the next batch."""
    num_products = sum(weight.numel() * min(len(weight), weight[0].numel()) for weight in weights)
    num_threads = torch.get_num_threads()
    if weights and not weights[0].is_cuda and num_products < _FEW_PRODUCTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _factors(grams: torch.Tensor) -> torch.Tensor:
    """The factors (k, m, m) to multiply matrices with these Gram matrices by."""
    one = torch.eye(grams.shape[1], device=grams.device).expand_as(grams)
    factors = one
    for _ in range(_ITERATIONS):
        factor = torch.baddbmm(torch.add(_A * one, grams, alpha=_B), grams, grams, alpha=_C)
        factors = torch.bmm(factor, factors)
        grams = torch.bmm(torch.bmm(factor, grams), factor)
    return factors


def _slopes(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


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

    @torch.no_grad()
    def update(self, network: torch.nn.Module) -> None:
        """Moves the average toward the network. What cannot be averaged, such as a count of batches, is copied."""
        own_tensors, tensors = ([*module.parameters(), *module.buffers()] for module in (self.network, network))
        pairs = list(zip(own_tensors, tensors, strict=True))
        is_first = self.num_averaged == 0
        averaged = [pair for pair in pairs if pair[0].is_floating_point() and not is_first]
        copied = [pair for pair in pairs if is_first or not pair[0].is_floating_point()]
        if averaged:
            # At first, nearly a plain mean over the steps so far, so that the random initial weights do not linger.
            weight = 1.0 - min((1.0 + self.num_averaged) / (10.0 + self.num_averaged), self._decay)
            torch._foreach_lerp_([own for own, _ in averaged], [new for _, new in averaged], weight)
        for own, new in copied:
            own.copy_(new)
        self.num_averaged += 1
