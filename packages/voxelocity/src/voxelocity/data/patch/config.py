"""Which boxes of a case the training uses."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from voxelocity.core.config import Config
from voxelocity.core.region import Index3

_Side = Annotated[int, Field(ge=1, le=4096)]


class PatchStage(Config):
    """An early part of a training, in which patches have a different shape."""

    until_share: float = Field(gt=0.0, lt=1.0)
    """Share of the training at which it ends."""
    shape_voxel: tuple[_Side, _Side, _Side]
    """Patch along (x, y, z) until then."""


class PatchConfig(Config):
    """How patches are chosen."""

    shape_voxel: tuple[_Side, _Side, _Side]
    """Patch along (x, y, z)."""
    foreground_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a patch is centered on a foreground voxel; other patches lie anywhere."""
    draws_per_case: int = Field(default=1, ge=1, le=10_000)
    """Patches taken from a case in one pass over the cases."""
    growth: tuple[PatchStage, ...] = ()
    """Other shapes, usually smaller ones, for the start of a training, one after the other; `shape_voxel` is the last.
    Steps on small patches are fast, and a network learns much from them (Fischer et al., arXiv:2510.23241)."""

    @model_validator(mode="after")
    def _stages_follow_each_other(self) -> Self:
        shares = [stage.until_share for stage in self.growth]
        if any(later <= earlier for earlier, later in pairwise(shares)):
            raise ValueError(f"growth ends its stages at {shares}; each until_share must be larger than the one before")
        return self

    @property
    def all_shapes(self) -> tuple[Index3, ...]:
        """Every shape that patches of a training have, each once, the first ones first."""
        return tuple(dict.fromkeys([*(stage.shape_voxel for stage in self.growth), self.shape_voxel]))

    def at(self, share: float) -> Self:
        """The configuration that applies when this share of the training is done."""
        for stage in self.growth:
            if share < stage.until_share:
                return self.model_copy(update={"shape_voxel": stage.shape_voxel})
        return self
