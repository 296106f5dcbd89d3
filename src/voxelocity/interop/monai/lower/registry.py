"""Every transform that can be lowered, by its class."""

from __future__ import annotations

import functools

from voxelocity.interop.monai.lower.crop import about_voxels, by_size, pad
from voxelocity.interop.monai.lower.intensity import dropout, filters, ranges, scaling
from voxelocity.interop.monai.lower.intensity.noise import noise_lowerings
from voxelocity.interop.monai.lower.items import cast, keys
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.spatial import affine, elastic, rotate, turn, zoom

_MODULES = (
    about_voxels,
    by_size,
    pad,
    affine,
    elastic,
    rotate,
    turn,
    zoom,
    dropout,
    filters,
    ranges,
    scaling,
    cast,
    keys,
)


@functools.cache
def lowerings(*, exact_noise: bool = False) -> Lowerings:
    """All of them.

    Args:
        exact_noise: draw noise voxel by voxel from MONAI's generator, as MONAI does, and not with the engine's own,
            which is many times faster and equal in distribution only.
    """
    known = {kind: lowering for module in _MODULES for kind, lowering in module.LOWERINGS.items()}
    return known | dict(noise_lowerings(exact=exact_noise))
