"""How weights follow gradients: the learning rate over a run, optimizers by name, Muon, and the average of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from pydantic import Field

from voxelocity.core.config import Config

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


def build_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer; torch's use their fused implementation: one kernel (CPU: one pass) for all parameters.

    AdamW's and Muon's decay skip biases and the scales of norms; SGD's L2 penalty covers all, as in nnU-Net.
    """
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            nesterov=config.momentum > 0.0,
            weight_decay=config.weight_decay,
            fused=True,
        )
    listed = list(parameters)
    betas = (0.9, config.second_momentum)
    if config.name == "muon":
        muon = Muon(
            listed,
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            betas=betas,
        )
        return cast(torch.optim.Optimizer, muon)
    groups = [
        {"params": [p for p in listed if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in listed if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)


class Muon:
    """Steps along the momentum with all its singular values made equal; AdamW for the rest, such as biases and norms.

    A weight (out, in, x, y, z) is a matrix (out, in * x * y * z). See Jordan et al. 2024,
    kellerjordan.github.io/posts/muon. torch's own class takes only matrices and always computes in bfloat16; a test
    compares the two. This class is used like torch's optimizers without being one of them: creating one of theirs
    imports torch's compiler, which would delay training by 2 s.

    Args:
        parameters: to train, in the order of the network. Those of two and more dimensions are matrices, except the
            first and the last of them, which see the image and make the logits: there AdamW learns faster.
        learning_rate: of all parameters.
        momentum: Nesterov momentum of matrices.
        weight_decay: decoupled decay of matrices.
        betas: of AdamW.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        *,
        learning_rate: float,
        momentum: float,
        weight_decay: float,
        betas: tuple[float, float],
    ) -> None:
        inner = {id(p) for p in [p for p in parameters if p.ndim > 1][1:-1]}
        shared = {"lr": learning_rate, "momentum": momentum, "betas": betas, "num_steps": 0}
        self.param_groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if id(p) in inner], "is_matrix": True, "weight_decay": weight_decay},
            {"params": [p for p in parameters if id(p) not in inner], "is_matrix": False, "weight_decay": 0.0},
        ]
        for group in self.param_groups:
            group.update(shared)
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
        steps = orthogonal([one.flatten(1) for one in ahead])
        for weight, step in zip(weights, steps, strict=True):
            weight.add_(step.reshape(weight.shape), alpha=-group["lr"] * _RMS * max(step.shape) ** 0.5)

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
    """

    def __init__(self, network: torch.nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network)
        self._decay = decay
        self._num_averaged = 0

    @torch.no_grad()
    def update(self, network: torch.nn.Module) -> None:
        """Moves the average toward the network. What cannot be averaged, such as a count of batches, is copied."""
        own_tensors, tensors = ([*module.parameters(), *module.buffers()] for module in (self.network, network))
        pairs = list(zip(own_tensors, tensors, strict=True))
        is_first = self._num_averaged == 0
        averaged = [pair for pair in pairs if pair[0].is_floating_point() and not is_first]
        copied = [pair for pair in pairs if is_first or not pair[0].is_floating_point()]
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
