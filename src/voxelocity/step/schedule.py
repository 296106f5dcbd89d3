"""The learning rate as a pure function of progress, so that a step count and a time budget share one schedule."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from voxelocity.core.config import Config


class ScheduleConfig(Config):
    """Linear warm-up, then decay to zero at the end of the run."""

    warmup_share: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the run over which the learning rate rises from zero to its peak."""
    decay: Literal["poly", "cosine", "constant"] = "poly"
    """How it falls afterwards."""
    poly_power: float = Field(default=0.9, gt=0.0)
    """Exponent of the poly decay (0.9 as in nnU-Net)."""


def learning_rate_at(progress: float, *, peak: float, config: ScheduleConfig) -> float:
    """The learning rate when `progress` (0 to 1) of the run is done."""
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
