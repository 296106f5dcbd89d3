"""nnU-Net's chain of transforms, and stand-ins for its data set and its loader."""

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
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import DownsampleSegForDSTransform
from batchgeneratorsv2.transforms.utils.nnunet_masking import MaskImageTransform
from batchgeneratorsv2.transforms.utils.pseudo2d import Convert2DTo3DTransform, Convert3DTo2DTransform
from batchgeneratorsv2.transforms.utils.random import RandomTransform
from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTransform
from batchgeneratorsv2.transforms.utils.seg_to_regions import ConvertSegmentationToRegionsTransform


def nnunet_chain(
    patch, *, in_planes=False, noise=0.1, is_masked=False, regions=None, scales=((1, 1, 1), (0.5, 0.5, 0.5))
):
    """The chain of nnU-Net v2's default trainer, with its numbers (nnUNetTrainer.get_training_transforms)."""
    degrees = np.pi if in_planes else np.pi / 6
    sides = patch[1:] if in_planes else patch
    spatial = SpatialTransform(
        sides, patch_center_dist_from_border=0, random_crop=False, p_elastic_deform=0, p_rotation=0.2,
        rotation=(-degrees, degrees), p_scaling=0.2, scaling=(0.7, 1.4), p_synchronize_scaling_across_axes=1,
        bg_style_seg_sampling=False, border_mode_seg="constant", padding_value_seg=-1,
    )  # fmt: skip
    each = {"synchronize_channels": False, "p_per_channel": 1}
    gamma = {**each, "gamma": BGContrast((0.7, 1.5)), "p_retain_stats": 1}
    steps = [Convert3DTo2DTransform(), spatial, Convert2DTo3DTransform()] if in_planes else [spatial]
    random = [
        (GaussianNoiseTransform(noise_variance=(0, 0.1), p_per_channel=1, synchronize_channels=True), noise),
        (GaussianBlurTransform(blur_sigma=(0.5, 1.0), synchronize_channels=False, synchronize_axes=False,
                               p_per_channel=0.5, benchmark=False), 0.2),
        (MultiplicativeBrightnessTransform(multiplier_range=BGContrast((0.75, 1.25)), **each), 0.15),
        (ContrastTransform(contrast_range=BGContrast((0.75, 1.25)), preserve_range=True, **each), 0.15),
        (SimulateLowResolutionTransform(scale=(0.5, 1), synchronize_channels=False, synchronize_axes=True,
                                        ignore_axes=(0,) if in_planes else None, p_per_channel=0.5), 0.25),
        (GammaTransform(p_invert_image=1, **gamma), 0.1),
        (GammaTransform(p_invert_image=0, **gamma), 0.3),
    ]  # fmt: skip
    steps += [RandomTransform(transform, apply_probability=chance) for transform, chance in random]
    steps.append(MirrorTransform(allowed_axes=tuple(range(len(patch)))))
    if is_masked:
        steps.append(MaskImageTransform(apply_to_channels=[0], channel_idx_in_seg=0, set_outside_to=0))
    steps.append(RemoveLabelTransform(-1, 0))
    if regions is not None:
        steps.append(ConvertSegmentationToRegionsTransform(regions=regions, channel_in_seg=0))
    return ComposeTransforms([*steps, DownsampleSegForDSTransform(ds_scales=scales)])


class FakeDataset:
    """Cases as nnU-Net's data sets give them out, of different shapes, smaller and larger than a patch."""

    def __init__(self, shapes, *, num_channels=1, has_previous=False, has_ignored=False, seed=0):
        rng = np.random.default_rng(seed)
        self.identifiers = [f"case_{number}" for number in range(len(shapes))]
        self.num_loads = 0
        self._cases = {}
        for identifier, shape in zip(self.identifiers, shapes, strict=True):
            image = rng.normal(size=(num_channels, *shape)).astype(np.float32)
            label = np.zeros((1, *shape), np.int16)
            label[:, 3:-3, 4:-4, 2:-2] = 1
            label[:, 5:-5, 6:-6, 4:-4] = 2
            label[:, :1] = -1
            if has_ignored:
                label[:, -4:, ::2] = 3
            places = np.argwhere(label == 1), np.argwhere(label == 2)
            previous = np.roll(label, 2, axis=2).clip(0) if has_previous else None
            self._cases[identifier] = image, label, previous, {"class_locations": {1: places[0], 2: places[1]}}

    def load_case(self, identifier):
        self.num_loads += 1
        return self._cases[identifier]


class FakeLoader:
    """nnU-Net's loader: which cases and boxes, and its own way of making a batch of them."""

    def __init__(self, dataset, transforms, *, crop, patch, is_flat=False, batch_size=2):
        self._data, self.transforms = dataset, transforms
        self.patch_size, self.final_patch_size, self.patch_size_was_2d = crop, patch, is_flat
        self.batch_size = batch_size

    def get_indices(self):
        return np.random.choice(self._data.identifiers, self.batch_size, replace=True)

    def get_do_oversample(self, number):
        return number >= self.batch_size // 2

    def get_bbox(self, shape, is_forced, class_locations):
        need = np.maximum(0, np.array(self.patch_size) - shape) + np.where(np.array(self.patch_size) > 1, 4, 0)
        low, high = -need // 2, shape + need // 2 + need % 2 - np.array(self.patch_size)
        if is_forced:
            place = class_locations[2][np.random.choice(len(class_locations[2]))][1:]
            start = [max(a, b - c // 2) for a, b, c in zip(low, place, self.patch_size, strict=True)]
        else:
            start = [np.random.randint(a, b + 1) for a, b in zip(low, high, strict=True)]
        return start, [a + b for a, b in zip(start, self.patch_size, strict=True)]

    def own_samples(self):
        """What nnU-Net's loader makes: each sample cropped, padded and put through its own chain."""
        samples, keys = [], self.get_indices()
        for number, key in enumerate(keys):
            image, label, previous, properties = self._data.load_case(key)
            is_forced = self.get_do_oversample(number)
            box = self.get_bbox(np.array(image.shape[1:]), is_forced, properties["class_locations"])
            labels = [part for part in (label, previous) if part is not None]
            crops = [padded_crop(part, *box, -1) for part in labels]
            image, label = torch.from_numpy(padded_crop(image, *box, 0)), torch.from_numpy(np.concatenate(crops))
            if self.patch_size_was_2d:
                image, label = image[:, 0], label[:, 0]
            samples.append(self.transforms(image=image, segmentation=label.to(torch.int16)))
        return list(keys), samples

    def generate_train_batch(self):
        """Those, stacked."""
        keys, samples = self.own_samples()
        scales = zip(*(sample["segmentation"] for sample in samples), strict=True)
        data = torch.stack([sample["image"] for sample in samples])
        return {"data": data, "target": [torch.stack(scale) for scale in scales], "keys": keys}


def padded_crop(array, start, stop, fill):
    """The box of an array, filled where it reaches beyond it."""
    out = np.full((array.shape[0], *(b - a for a, b in zip(start, stop, strict=True))), fill, array.dtype)
    inside = [(max(a, 0), min(b, n)) for a, b, n in zip(start, stop, array.shape[1:], strict=True)]
    to = tuple(slice(a - origin, b - origin) for (a, b), origin in zip(inside, start, strict=True))
    out[(slice(None), *to)] = array[(slice(None), *(slice(a, b) for a, b in inside))]
    return out
