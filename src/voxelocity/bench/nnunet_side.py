"""nnU-Net's side: its default augmentation, made by batchgeneratorsv2. Imported only where that is installed.

Parameters and order are those of `nnUNetTrainer.get_training_transforms` in MIC-DKFZ/nnUNet (Apache-2.0), commit
017de4adbc55709423ac569c51191df8a6af7ee5, for one 3-D patch without cascade, regions or deep supervision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from batchgeneratorsv2.transforms.intensity.brightness import MultiplicativeBrightnessTransform
from batchgeneratorsv2.transforms.intensity.contrast import BGContrast, ContrastTransform
from batchgeneratorsv2.transforms.intensity.gamma import GammaTransform
from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform
from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
from batchgeneratorsv2.transforms.spatial.low_resolution import SimulateLowResolutionTransform
from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform
from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
from batchgeneratorsv2.transforms.utils.random import RandomTransform
from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTansform

from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume

_ROTATION = (-30.0 / 360.0 * 2.0 * math.pi, 30.0 / 360.0 * 2.0 * math.pi)


def default_augmentation(patch: Index3) -> Any:
    """The transforms of nnU-Net's training, patch by patch."""
    spatial = SpatialTransform(
        patch, patch_center_dist_from_border=0, random_crop=False, p_elastic_deform=0, p_rotation=0.2,
        rotation=_ROTATION, p_scaling=0.2, scaling=(0.7, 1.4), p_synchronize_scaling_across_axes=1,
        bg_style_seg_sampling=False,
    )  # fmt: skip
    noise = GaussianNoiseTransform(noise_variance=(0, 0.1), p_per_channel=1, synchronize_channels=True)
    blur = GaussianBlurTransform(
        blur_sigma=(0.5, 1.0), synchronize_channels=False, synchronize_axes=False, p_per_channel=0.5, benchmark=True
    )
    brightness = MultiplicativeBrightnessTransform(
        multiplier_range=BGContrast((0.75, 1.25)), synchronize_channels=False, p_per_channel=1
    )
    contrast = ContrastTransform(
        contrast_range=BGContrast((0.75, 1.25)), preserve_range=True, synchronize_channels=False, p_per_channel=1
    )
    low_resolution = SimulateLowResolutionTransform(
        scale=(0.5, 1), synchronize_channels=False, synchronize_axes=True, ignore_axes=None, allowed_channels=None,
        p_per_channel=0.5,
    )  # fmt: skip
    chain = [spatial]
    for transform, probability in (
        (noise, 0.1),
        (blur, 0.2),
        (brightness, 0.15),
        (contrast, 0.15),
        (low_resolution, 0.25),
        (_gamma(inverted=True), 0.1),
        (_gamma(inverted=False), 0.3),
    ):
        chain.append(RandomTransform(transform, apply_probability=probability))
    return ComposeTransforms([*chain, MirrorTransform(allowed_axes=(0, 1, 2)), RemoveLabelTansform(-1, 0)])


def loaded_side(patch_side: int) -> int:
    """Side of the cube that nnU-Net reads for a cubic patch: room for its rotation, then for 0.85 of its scale.

    Source: `get_patch_size` in nnunetv2/training/data_augmentation/compute_initial_patch_size.py.
    """
    rotated = patch_side * (math.cos(_ROTATION[1]) + math.sin(_ROTATION[1]))
    return int(rotated / 0.85)


class LoadedPatches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Augmented patches by index, cut from volumes in memory that are stored as nnU-Net stores them (float32, int16).

    Args:
        volumes: prepared cases.
        patch: of the result; cubic.
        augmentation: from `default_augmentation`.
    """

    def __init__(self, volumes: list[Volume], patch: Index3, augmentation: Any) -> None:
        self._images = [volume.intensities() for volume in volumes]
        self._labels = [np.asarray(volume.label, dtype=np.int16)[None] for volume in volumes]
        self._sides = (loaded_side(patch[0]),) * 3
        self._augmentation = augmentation

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.read(index)
        with torch.no_grad():
            made: dict[str, torch.Tensor] = self._augmentation(image=image, segmentation=label)
        return made

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The larger patch that the augmentation is given: image (c, x, y, z) float32 and label (1, x, y, z) int16."""
        shape = self._images[index].shape[1:]
        # torch's generator: it is seeded for each worker of a loader, NumPy's is not.
        starts = [int(torch.randint(max(n - s, 0) + 1, ())) for n, s in zip(shape, self._sides, strict=True)]
        box = tuple(slice(start, start + side) for start, side in zip(starts, self._sides, strict=True))
        missing = [max(side - n, 0) for side, n in zip(self._sides, shape, strict=True)]
        pads = [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing)]
        image, label = (
            np.pad(array[(slice(None), *box)], pads) for array in (self._images[index], self._labels[index])
        )
        return torch.from_numpy(image), torch.from_numpy(label)


def _gamma(*, inverted: bool) -> Any:
    return GammaTransform(
        gamma=BGContrast((0.7, 1.5)),
        p_invert_image=float(inverted),
        synchronize_channels=False,
        p_per_channel=1,
        p_retain_stats=1,
    )
