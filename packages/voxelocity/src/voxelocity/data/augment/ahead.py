"""The kernels that a training's augmentation can need, to be compiled before its first batch needs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity.core.kernels import Launch, distinct, record_launches
from voxelocity.core.region import Index3, Region
from voxelocity.data.augment.built_in import EFFECTS, Patches
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.params import AugmentParams, Source


def possible_launches(
    config: AugmentConfig,
    *,
    num_channels: int,
    patch_shapes: Collection[Index3],
    dtypes: Sequence[str],
    swaps_classes: bool,
    image_format: ImageFormat = PLAIN,
) -> list[Launch]:
    """Each launch that batches of these kinds can make, once; those that take longest to compile first.

    The engine itself makes them, of a batch in which everything was drawn that can be, on the device "meta".

    Args:
        config: of the augmentation.
        num_channels: of the images.
        patch_shapes: of the batches.
        dtypes: in which images are stored.
        swaps_classes: whether flips from left to right swap classes.
        image_format: of the batches' images.
    """
    from voxelocity.data.augment.triton_engine import augment_batch

    found: list[Launch] = []
    for shape in patch_shapes:
        params = everything_drawn(config, num_channels=num_channels, patch_shape=shape, swaps_classes=swaps_classes)
        rows = range(params.num_samples)
        image = image_format.empty((len(rows), num_channels, *shape), torch.device("meta"))
        label = torch.empty((len(rows), *shape), dtype=torch.uint8, device="meta")
        for dtype in dtypes:
            voxels = np.zeros((num_channels, 1, 1, 1), dtype), np.zeros((1, 1, 1), np.uint8)
            source = Source(image=voxels[0], label=voxels[1], start=(0, 0, 0))
            with record_launches(runs=False) as launches:
                augment_batch([source for _ in rows], [Region((0, 0, 0), shape) for _ in rows], params, image, label)
            found += launches
    slow = ("gather", "change_points", "coarsen", "bend")
    return sorted(distinct(found), key=lambda launch: launch.kernel.__name__ not in slow)


def everything_drawn(
    config: AugmentConfig, *, num_channels: int, patch_shape: Index3, swaps_classes: bool
) -> AugmentParams:
    """Parameters of two samples that draw whatever the configuration can: one warped, with a low resolution."""
    swapped_classes = range(256) if swaps_classes else ()
    if not config.enabled:
        return AugmentParams.identity(2, num_channels, swapped_classes=swapped_classes)
    params = Patches(config=config, num_channels=num_channels, shape=patch_shape).unchanged(2, swapped_classes)
    for effect in EFFECTS:
        if effect.is_on(config):
            for name, example in effect.example.items():
                getattr(params, name)[:] = example
    params.is_swapped[:] &= swaps_classes
    return params
