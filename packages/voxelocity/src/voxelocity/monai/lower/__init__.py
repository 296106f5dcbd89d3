"""MONAI's random transforms as steps of the fused augmentation: drawn as MONAI draws them, made in few passes."""

from __future__ import annotations

import functools

# Each registers its transforms.
from voxelocity.monai.lower import items as items
from voxelocity.monai.lower.crop import about_voxels as about_voxels
from voxelocity.monai.lower.crop import boxes as boxes
from voxelocity.monai.lower.intensity import filters as filters
from voxelocity.monai.lower.intensity import noise as noise
from voxelocity.monai.lower.intensity import scaling as scaling
from voxelocity.monai.lower.lowering import EXACT_NOISE, LOWERINGS, Lowering, Lowerings
from voxelocity.monai.lower.pending import PendingTensor
from voxelocity.monai.lower.spatial import affine as affine
from voxelocity.monai.lower.spatial import elastic as elastic
from voxelocity.monai.lower.spatial import turn as turn
from voxelocity.monai.lower.spatial import zoom as zoom

__all__ = ["Lowering", "Lowerings", "PendingTensor", "lowerings"]


@functools.cache
def lowerings(*, exact_noise: bool = False) -> Lowerings:
    """Every transform that can be lowered, by its class.

    Args:
        exact_noise: draw noise voxel by voxel from MONAI's generator, as MONAI does, and not with the engine's own,
            which is many times faster and equal in distribution only.
    """
    return LOWERINGS | EXACT_NOISE if exact_noise else dict(LOWERINGS)
