"""Which boxes of a case are learnt from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from voxelocity.core.config import Config

_Side = Annotated[int, Field(ge=1, le=4096)]


class PatchConfig(Config):
    """How patches are chosen."""

    shape_voxel: tuple[_Side, _Side, _Side]
    """Patch along (x, y, z)."""
    foreground_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a patch is centred on a foreground voxel; the others lie anywhere."""
    draws_per_case: int = Field(default=1, ge=1, le=10_000)
    """Patches taken from a case in one pass over the cases."""
