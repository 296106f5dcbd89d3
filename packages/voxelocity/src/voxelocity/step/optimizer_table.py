"""The optimizers by name: how each is built and groups its parameters, which keys it reads, what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.step.own_optimizers import Muon, NovoGrad

if TYPE_CHECKING:
    from voxelocity.parallel import Sharding

OptimizerName = Literal["sgd", "adamw", "muon", "novograd"]
Groups = list[dict[str, Any]]
"""As torch's optimizers take them: "params", and the settings of each."""
Rate = float | torch.Tensor
"""A learning rate, or a scalar on the device that each step reads."""
Grouping = list[tuple[list[int], dict[str, Any]]]
"""The indices of the parameters of each group, and its settings."""


class OptimizerConfig(Config):
    """How weights follow gradients."""

    name: OptimizerName
    """A row of `OPTIMIZERS`, which docs/plan.md shows."""
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


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """An optimizer that a plan may name.

    Attributes:
        words: what it is, for documentation.
        paper: who described it.
        keys: of `OptimizerConfig` that it reads and others may not.
        build: the optimizer of these groups; the sharding says of what this rank trains a part.
        group: the parameters of the whole network in groups.
        num_kept: tensors as large as a parameter, in float32, that it keeps of one.
        skips_on_device: whether its step reads on the device that float16 overflowed; for others, the scaler asks the
            device. Then a step in float16 can be replayed as a CUDA graph.
        needs_whole: whether a step of a part of a parameter needs all of it, which FSDP does not have.
        planned_rate: the learning rate that rules choose, for the usual batch, and why.
        planned_momentum: the momentum that they choose, and why; None leaves the default.
        rate_power: the power of the batch size that the learning rate grows with. Where gradients are normalized, it is
            the square root (Malladi et al. 2022, arXiv:2205.10287).
    """

    words: str
    paper: str
    keys: tuple[str, ...]
    build: Callable[[OptimizerConfig, Groups, Rate, Sharding | None], torch.optim.Optimizer | Muon | NovoGrad]
    group: Callable[[OptimizerConfig, Sequence[torch.nn.Parameter]], Grouping]
    num_kept: int
    skips_on_device: bool = False
    needs_whole: bool = False
    planned_rate: tuple[float, str] = (4e-3, "3e-3 and 8e-3 gave similar results in our short runs")
    planned_momentum: tuple[float, str] | None = None
    rate_power: float = 0.5


def _betas(config: OptimizerConfig) -> tuple[float, float]:
    return (0.9, config.second_momentum)


def _all_decayed(config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]) -> Grouping:
    return [([*range(len(parameters))], {"weight_decay": config.weight_decay})]


def _matrices_decayed(config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]) -> Grouping:
    """Neither biases nor the scales of norms decay."""
    decayed = [number for number, parameter in enumerate(parameters) if parameter.ndim > 1]
    return _two_groups(config, decayed, len(parameters))


def _inner_matrices(config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]) -> Grouping:
    """As `_matrices_decayed`, but the first and last see the image and make the logits: there AdamW learns faster."""
    decayed = [number for number, parameter in enumerate(parameters) if parameter.ndim > 1][1:-1]
    matrices, others = _two_groups(config, decayed, len(parameters))
    return [(matrices[0], {"is_matrix": True, **matrices[1]}), (others[0], {"is_matrix": False, **others[1]})]


def _two_groups(config: OptimizerConfig, decayed: list[int], num_parameters: int) -> Grouping:
    others = sorted(set(range(num_parameters)) - set(decayed))
    return [(decayed, {"weight_decay": config.weight_decay}), (others, {"weight_decay": 0.0})]


OPTIMIZERS: Mapping[OptimizerName, OptimizerKind] = {
    "sgd": OptimizerKind(
        words="SGD with Nesterov momentum, nnU-Net's choice",
        paper="Sutskever et al., proceedings.mlr.press/v28/sutskever13",
        keys=("momentum",),
        build=lambda config, groups, rate, _: torch.optim.SGD(
            groups, lr=rate, momentum=config.momentum, nesterov=config.momentum > 0.0, fused=True
        ),
        group=_all_decayed,
        num_kept=1,
        skips_on_device=True,
        # Goyal et al. 2017, arXiv:1706.02677.
        rate_power=1.0,
    ),
    "adamw": OptimizerKind(
        words="Adam with decoupled weight decay",
        paper="Loshchilov and Hutter, arXiv:1711.05101",
        keys=("second_momentum",),
        build=lambda config, groups, rate, _: torch.optim.AdamW(
            groups, lr=rate, betas=_betas(config), fused=True, capturable=isinstance(rate, torch.Tensor)
        ),
        group=_matrices_decayed,
        num_kept=2,
        skips_on_device=True,
    ),
    "muon": OptimizerKind(
        words="Muon for the inner convolutions, AdamW for the rest",
        paper="Jordan et al., kellerjordan.github.io/posts/muon",
        keys=("momentum", "second_momentum"),
        build=lambda config, groups, rate, sharding: Muon(
            groups, learning_rate=rate, momentum=config.momentum, betas=_betas(config), sharding=sharding
        ),
        group=_inner_matrices,
        # Of the few that are no matrices, two.
        num_kept=1,
        planned_rate=(8e-3, "trained faster than 4e-3 in our short runs"),
        planned_momentum=(0.95, "Muon's usual value"),
    ),
    "novograd": OptimizerKind(
        words="steps along gradients that are normalized by the norm of each parameter's gradient",
        paper="Ginsburg et al., arXiv:1905.11286",
        keys=("second_momentum",),
        build=lambda config, groups, rate, _: NovoGrad(groups, learning_rate=rate, betas=_betas(config)),
        group=_matrices_decayed,
        num_kept=1,
        needs_whole=True,
    ),
}
"""By name. A test fails if documentation lacks one."""
