"""Changes of intensities that use each voxel alone: consecutive ones are one pass over a patch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """`(v - center) * scale + shift`.

    Attributes:
        scale: (c,), one for each channel.
        shift: (c,).
        center: (c,), or None for 0. Subtracted first, so that no digits are lost if it is large.
        keeps_zero: whether voxels of exactly 0 stay unchanged.
    """

    scale: Floats
    shift: Floats
    center: Floats | None = None
    keeps_zero: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """Clips to at least `low` and at most `high`, which wins; each (c,), infinite for no bound."""

    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Threshold:
    """Replaces each voxel that is not above the bound, or not below it, by `fill`."""

    bound: float
    keeps_above: bool
    fill: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Power:
    """`((v - low) / divisor) ** gamma * span + low`, for voxels from `low` to about `low + divisor`."""

    low: float
    divisor: float
    gamma: float
    span: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The line through `values` (n,), n >= 2, at equal distances from `low` to `high`, constant beyond them."""

    low: float
    high: float
    values: Floats


Pointwise = Linear | Clip | Threshold | Power | Curve
