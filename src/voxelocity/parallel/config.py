"""How ranks share the work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from voxelocity.core.config import Config


class ParallelConfig(Config):
    """How several ranks train together. Changes only roundings, and nothing on a single process."""

    balance: Literal["auto", "equal", "measured"] | tuple[Annotated[float, Field(gt=0.0)], ...] = "auto"
    """How many patches of a batch each rank takes: equal numbers; numbers in these proportions, one for each rank, such
    as [0.6, 0.4]; "measured": equal numbers unless a few passes on each rank's device show that others make a step
    faster by a tenth; "auto": measured if the ranks have different devices, else equal."""
    silence_s: float = Field(default=25.0, ge=1.0, le=86_400.0)
    """Seconds after which a rank counts as hanging if the others wait for it in a training step; longer if any of the
    last steps took more than a twentieth of that. Increase it where a file system may stall for longer."""
    bucket_mb: float = Field(default=25.0, gt=0.0, le=4096.0)
    """Megabytes of gradients that ranks exchange at once while the backward pass computes others."""
