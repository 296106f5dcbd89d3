"""Small programs whose chain of MONAI's transforms has one fault each."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, Dataset, SmartCacheDataset
from monai.transforms import Compose, RandFlip, RandomizableTransform, Transform
from torch import nn

NUM_EPOCHS = 10
SIDE = 12


class SlowFixed(Transform):
    """Stands for resampling: the same result each time."""

    def __call__(self, image):
        time.sleep(0.006)
        return image


class SlowRandom(RandomizableTransform):
    """Stands for an elastic deformation: another result each time."""

    def __call__(self, image):
        self.randomize(None)
        time.sleep(0.006)
        return image


class AddChannel(Transform):
    """(x, y, z) to (1, x, y, z)."""

    def __call__(self, image):
        return torch.as_tensor(np.asarray(image), dtype=torch.float32)[None]


def _train(files: list, chain: list, *, keep: Callable[..., Dataset] = Dataset) -> None:
    network = nn.Conv3d(1, 2, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    data = keep(files, Compose(chain))
    loader = DataLoader(data, batch_size=1)
    for _ in range(NUM_EPOCHS):
        if isinstance(data, SmartCacheDataset):
            data.update_cache()
        for batch in loader:
            optimizer.zero_grad()
            network(torch.as_tensor(batch)).square().mean().backward()
            optimizer.step()


def _arrays() -> list[np.ndarray]:
    return [np.zeros((SIDE, SIDE, SIDE), np.float32) for _ in range(4)]


def repeated_work(folder: Path) -> None:
    """A slow fixed transform before the random one, and a data set that keeps nothing."""
    _train(_arrays(), [SlowFixed(), AddChannel(), RandFlip(prob=0.5)])


def dominant_random(folder: Path) -> None:
    """A random transform that takes nearly all of an item's time."""
    _train(_arrays(), [AddChannel(), SlowRandom(), RandFlip(prob=0.5)])


def fixed_after_random(folder: Path) -> None:
    """A data set that keeps its items, and a slow fixed transform behind the random one."""
    _train(_arrays(), [AddChannel(), RandFlip(prob=0.5), SlowFixed()], keep=partial(CacheDataset, progress=False))


def slow_replacement(folder: Path) -> None:
    """A thread replaces half of four kept items in each epoch, which takes longer than the epoch's steps."""
    keep = partial(SmartCacheDataset, cache_num=2, replace_rate=1.0, progress=False)
    _train(_arrays(), [SlowFixed(), AddChannel(), RandFlip(prob=0.5)], keep=keep)


def read_again(folder: Path) -> None:
    """Reads and scales each of twelve scans at each use."""
    noise = np.random.default_rng(0).integers(0, 200, (48, 48, 48), dtype=np.int16)
    paths = [folder / f"{number}.nii.gz" for number in range(12)]
    for path in paths:
        nibabel.save(nibabel.Nifti1Image(noise, np.eye(4)), path)
    network = nn.Conv3d(1, 2, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    for _ in range(4):
        for path in paths:
            scan = nibabel.load(path).get_fdata(dtype=np.float32)
            scan = (scan - scan.mean()) / scan.std()
            patch = torch.from_numpy(scan[None, None, :SIDE, :SIDE, :SIDE].copy())
            optimizer.zero_grad()
            network(patch).square().mean().backward()
            optimizer.step()
