"""Every transform that can be lowered, by its class."""

from __future__ import annotations

import functools

from voxelocity.interop.monai.lower import (
    affine,
    cast,
    crop,
    crop_at,
    dropout,
    elastic,
    intensity_filter,
    intensity_range,
    intensity_scale,
    items,
    pad,
    rotate,
    turn,
    zoom,
)
from voxelocity.interop.monai.lower.intensity_noise import noise_lowerings
from voxelocity.interop.monai.lower.lowering import Lowerings

_MODULES = (
    affine,
    cast,
    crop,
    crop_at,
    dropout,
    elastic,
    intensity_filter,
    intensity_range,
    intensity_scale,
    items,
    pad,
    rotate,
    turn,
    zoom,
)


@functools.cache
def lowerings(*, exact_noise: bool = False) -> Lowerings:
    """All of them.

    Args:
        exact_noise: draw noise voxel by voxel from MONAI's generator, as MONAI does, and not by the engine's own,
            which is many times faster and equal in distribution only.
    """
    known = {kind: lowering for module in _MODULES for kind, lowering in module.LOWERINGS.items()}
    return known | dict(noise_lowerings(exact=exact_noise))
