"""The kernels of a feed, compiled before it needs them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity.core.compiling import compile_all
from voxelocity.core.laterality import swapped_classes
from voxelocity.data.augment import filling_device, possible_launches
from voxelocity.data.pipeline.config import DataConfig
from voxelocity_observe.core.device import numbered


def compile_kernels(
    config: DataConfig,
    *,
    num_channels: int,
    dtypes: Sequence[str],
    class_names: Sequence[str],
    device: torch.device,
    image_format: ImageFormat = PLAIN,
) -> Future[dict[str, float]] | None:
    """Begins to compile what a feed of this configuration launches, in threads, as `core.compiling` does.

    None if there is nothing to compile: elsewhere than on a CUDA device, with another engine, or if
    `feed.compiles_ahead` says so.

    Args:
        config: of the pipeline.
        num_channels: of the images.
        dtypes: in which prepared images are stored.
        class_names: of the labels.
        device: where the feed's batches end up.
        image_format: as the feed takes it.
    """
    if not config.feed.compiles_ahead or device.type != "cuda":
        return None
    filled_on = filling_device(config.augment.engine, numbered(device))
    if filled_on.type != "cuda":
        return None
    find = functools.partial(
        possible_launches,
        config.augment,
        num_channels=num_channels,
        patch_shapes=config.patch.all_shapes,
        dtypes=dtypes,
        swaps_classes=len(swapped_classes(class_names, config.augment.swap_pairs)) > 0,
        image_format=config.given_out(image_format, filled_on, num_channels * math.prod(config.patch.shape_voxel)),
    )
    return compile_all(find, filled_on)
