"""Every transform that can be lowered, by its class."""

from __future__ import annotations

import functools

from voxelocity.interop.monai.lower.lowering import Lowerings


@functools.cache
def lowerings(*, exact_noise: bool = False) -> Lowerings:
    """All of them.

    Args:
        exact_noise: draw noise voxel by voxel from MONAI's generator, as MONAI does, and not by the engine's own,
            which is many times faster and equal in distribution only.
    """
    return {}
