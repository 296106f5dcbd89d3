"""Optimizers by name: torch's, and Muon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.step.muon import Muon


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
