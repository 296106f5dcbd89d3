"""nnU-Net's side: its default augmentation, made by batchgeneratorsv2, and its own feed of Blosc2 files and processes.

Parameters and order of the augmentation are those of `nnUNetTrainer.get_training_transforms` in MIC-DKFZ/nnUNet
(Apache-2.0), commit 017de4adbc55709423ac569c51191df8a6af7ee5, for one 3-D patch without cascade, regions or deep
supervision. The feed is wired as in `get_dataloaders` of nnUNetTrainer in nnunetv2 2.8.1; the trainer itself is not
used: it needs plans, named folders, a network.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blosc2
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
from voxelocity_lab.bench.streams import OpenStream, RandomBoxes, Work, endless

_ROTATION = (-30.0 / 360.0 * 2.0 * math.pi, 30.0 / 360.0 * 2.0 * math.pi)
_MAX_LOCATIONS = 10_000
"""Foreground voxels of a class that nnU-Net's preprocessing keeps."""


def patch_streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """The augmentation alone, in torch's DataLoader, of cases in memory."""
    assert chain == "nnU-Net", chain
    dataset = LoadedPatches(work.volumes, work.patch, default_augmentation(work.patch))
    options: dict[str, Any] = {"batch_size": work.batch_size}
    return {
        f"DataLoader(num_workers={number})": endless(
            torch.utils.data.DataLoader, dataset, num_workers=number, **options
        )
        for number in work.workers
    }


def streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """nnU-Net's feed, which augments or merely cuts."""
    assert work.place is not None, "nnU-Net keeps its cases in files"
    if not (folder := work.place / "nnunet").exists():
        write_cases(work.volumes, folder, work.patch)
    options = {"batch_size": work.batch_size, "num_classes": work.phantoms.num_classes}
    return {
        f"{number} processes": functools.partial(
            open_batches, folder, work.patch, augmented=chain == "nnU-Net", num_workers=number, **options
        )
        for number in work.workers
    }


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
    random = (
        (noise, 0.1),
        (blur, 0.2),
        (brightness, 0.15),
        (contrast, 0.15),
        (low_resolution, 0.25),
        (_gamma(inverted=True), 0.1),
        (_gamma(inverted=False), 0.3),
    )
    chain = [spatial, *(RandomTransform(transform, apply_probability=share) for transform, share in random)]
    return ComposeTransforms([*chain, MirrorTransform(allowed_axes=(0, 1, 2)), RemoveLabelTansform(-1, 0)])


def _gamma(*, inverted: bool) -> Any:
    return GammaTransform(
        gamma=BGContrast((0.7, 1.5)),
        p_invert_image=float(inverted),
        synchronize_channels=False,
        p_per_channel=1,
        p_retain_stats=1,
    )


def loaded_side(patch_side: int) -> int:
    """Side of the cube that nnU-Net reads for a cubic patch: room for its rotation, then for 0.85 of its scale.

    Source: `get_patch_size` in nnunetv2/training/data_augmentation/compute_initial_patch_size.py.
    """
    rotated = patch_side * (math.cos(_ROTATION[1]) + math.sin(_ROTATION[1]))
    return int(rotated / 0.85)


class LoadedPatches(RandomBoxes, torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Augmented cubic patches by index, cut from volumes in memory as nnU-Net stores them (float32, int16)."""

    def __init__(self, volumes: Sequence[Volume], patch: Index3, augmentation: Any) -> None:
        side = loaded_side(patch[0])
        super().__init__(volumes, (side, side, side), label_dtype=np.int16)
        self._augmentation = augmentation

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.read(index)
        with torch.no_grad():
            made: dict[str, torch.Tensor] = self._augmentation(image=image, segmentation=label)
        return made

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The larger patch that the augmentation is given, a copy: image (c, x, y, z), label (1, x, y, z)."""
        image, label = self.cut(index)
        gaps = [side - n for side, n in zip(self.shape, image.shape[1:], strict=True)]
        # Of the last axis first.
        pads = [side for gap in reversed(gaps) for side in (gap // 2, gap - gap // 2)]
        return torch.nn.functional.pad(image, pads), torch.nn.functional.pad(label, pads)


def write_cases(volumes: Sequence[Volume], folder: Path, patch: Index3) -> None:
    """The cases as nnU-Net's preprocessing leaves them: float32 and int16 in Blosc2 chunks, and foreground places.

    `folder` is made where it is missing; chunks are sized for the patch.
    """
    from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with _keeping_blosc_threads():
        for volume in volumes:
            assert volume.label is not None, "phantoms have labels"
            image, label = volume.intensities(), volume.label.astype(np.int16)[None]
            blocks, chunks = comp_blosc2_params(image.shape, patch, image.itemsize)
            blocks_seg, chunks_seg = comp_blosc2_params(label.shape, patch, label.itemsize)
            # Places (n, 4) of some voxels of each class, channel first.
            locations = {
                value: rng.permutation(np.argwhere(label == value))[:_MAX_LOCATIONS]
                for value in np.unique(label[label > 0]).tolist()
            }
            nnUNetDatasetBlosc2.save_case(
                image, label, {"class_locations": locations}, str(folder / volume.case_id),
                chunks=chunks, blocks=blocks, chunks_seg=chunks_seg, blocks_seg=blocks_seg,
            )  # fmt: skip


@contextlib.contextmanager
def open_batches(
    folder: Path, patch: Index3, *, batch_size: int, num_classes: int, augmented: bool, num_workers: int
) -> Iterator[Iterator[dict[str, Any]]]:
    """Batches of nnU-Net's workers: "data" (b, c, x, y, z) float32 and "target" (b, 1, x, y, z) int16.

    `write_cases` has filled the folder, `num_classes` counts the background. Cubic patches are augmented by nnU-Net's
    default augmentation, from the larger cube that it needs, or merely cut.
    """
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
    from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2

    with _keeping_blosc_threads():
        loader = nnUNetDataLoader(
            nnUNetDatasetBlosc2(str(folder)),
            batch_size,
            (loaded_side(patch[0]),) * 3 if augmented else patch,
            patch,
            SimpleNamespace(all_labels=list(range(1, num_classes)), has_ignore_label=False),
            oversample_foreground_percent=0.33,
            transforms=default_augmentation(patch) if augmented else None,
        )
        cached = max(6, num_workers // 2)
        workers = NonDetMultiThreadedAugmenter(loader, None, num_workers, num_cached=cached, wait_time=0.002)
        try:
            yield workers
        finally:
            with _quiet_about_closed_connections():
                workers._finish()


@contextlib.contextmanager
def _quiet_about_closed_connections() -> Iterator[None]:
    """A batch that the augmenter's thread takes while its worker ends is lost; its traceback says no more."""
    before = threading.excepthook

    def pass_on_others(failure: threading.ExceptHookArgs) -> None:
        if not issubclass(failure.exc_type, (OSError, EOFError)):
            before(failure)

    threading.excepthook = pass_on_others
    try:
        yield
    finally:
        threading.excepthook = before


@contextlib.contextmanager
def _keeping_blosc_threads() -> Iterator[None]:
    """nnU-Net's data set sets the number of Blosc2's threads for the whole process; it is restored afterwards."""
    before = blosc2.nthreads
    try:
        yield
    finally:
        blosc2.set_nthreads(before)
