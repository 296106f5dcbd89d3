"""Small programs whose chain of MONAI's transforms has one fault each."""

from __future__ import annotations

import time
from pathlib import Path

import nibabel
import numpy as np
import torch
from monai.data import DataLoader, Dataset
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


def _train(files: list, chain: list) -> None:
    network = nn.Conv3d(1, 2, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    loader = DataLoader(Dataset(files, Compose(chain)), batch_size=1)
    for _ in range(NUM_EPOCHS):
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
