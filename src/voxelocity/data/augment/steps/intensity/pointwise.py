"""Changes of intensities that look at each voxel alone: as many as follow each other are one pass over a patch."""

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
        center: (c,), or None for 0. Subtracted first, so that no digits are lost where it is large.
        keeps_zero: whether voxels of exactly 0 are left as they are.
    """

    scale: Floats
    shift: Floats
    center: Floats | None = None
    keeps_zero: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """No less than `low`, and no more than `high`, which wins; each (c,), infinite where there is no bound."""

    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Threshold:
    """`fill` instead of each voxel that is not above the bound, or not below it."""

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
    """The line through `values` (n,), n >= 2, which stand at equal distances from `low` to `high`, flat beyond them."""

    low: float
    high: float
    values: Floats


Pointwise = Linear | Clip | Threshold | Power | Curve


def negative(num_channels: int) -> Linear:
    """`-v`."""
    return Linear(scale=np.full(num_channels, -1.0, np.float32), shift=np.zeros(num_channels, np.float32))
