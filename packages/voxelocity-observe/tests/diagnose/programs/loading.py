"""Small programs with one fault each in how batches are made. Each takes a folder and trains for a moment."""

from __future__ import annotations

import gzip
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_STEPS = 40
SIDE = 12


class Scans(Dataset):
    """Items of zeros, each after a wait for a source that answers late."""

    def __init__(self, wait_s: float, *, count: int = NUM_STEPS, late_s: float = 0.0, channels: int = 1) -> None:
        self.wait_s, self.count, self.late_s, self.channels = wait_s, count, late_s, channels

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.late_s if self.late_s and index % 8 == 7 else self.wait_s)
        return torch.zeros(self.channels, SIDE, SIDE, SIDE)


class Slow(nn.Module):
    """A network that takes a while, whatever else runs on this machine's cores."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.layer, self.wait_s = nn.Conv3d(1, 4, 3), wait_s

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.wait_s)
        return self.layer(images)


def train_on(batches, network: nn.Module | None = None) -> None:
    """A step for each batch, on a network that takes about a millisecond if not given."""
    network = network or nn.Conv3d(1, 4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    for batch in batches:
        optimizer.zero_grad()
        network(batch[:, :1]).square().mean().backward()
        optimizer.step()


def own_thread(folder: Path) -> None:
    """num_workers=0 and a data set that takes as long as several steps."""
    train_on(DataLoader(Scans(0.008)))


def no_loader(folder: Path) -> None:
    """The loop unpacks its scans itself."""
    path = folder / "scan.npy.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).integers(0, 50, 400_000, dtype=np.int16).tobytes()))

    def scans():
        for _ in range(NUM_STEPS):
            voxels = np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.int16)
            yield torch.from_numpy(voxels[: SIDE**3].astype(np.float32)).reshape(1, 1, SIDE, SIDE, SIDE)

    train_on(scans())


def too_few_workers(folder: Path) -> None:
    """One worker for a network that takes a batch in a fraction of what it needs."""
    train_on(DataLoader(Scans(0.025), num_workers=1, persistent_workers=True))


def too_many_workers(folder: Path) -> None:
    """Eight workers; the table says that there are two cores."""
    with warnings.catch_warnings():
        # torch warns of it too; a person who reads that needs no diagnosis.
        warnings.simplefilter("ignore", UserWarning)
        train_on(DataLoader(Scans(0.001), num_workers=8, persistent_workers=True))


def restarted_workers(folder: Path) -> None:
    """Short epochs, each with new workers."""
    loader = DataLoader(Scans(0.0, count=8), num_workers=1)
    train_on(batch for _ in range(5) for batch in loader)


def needless_workers(folder: Path) -> None:
    """Short epochs of items that take no time, each with a new worker."""
    loader = DataLoader(Scans(0.0, count=8), num_workers=1)
    train_on((batch for _ in range(5) for batch in loader), Slow(0.005))


def late_batches(folder: Path) -> None:
    """One batch in eight takes as long as seven steps, and only two are made ahead."""
    loader = DataLoader(Scans(0.0, late_s=0.2), num_workers=1, persistent_workers=True, prefetch_factor=2)
    train_on(loader, Slow(0.03))


def thread_loader(folder: Path) -> None:
    """MONAI's loader of threads, with items that hold the interpreter."""
    from monai.data import ThreadDataLoader

    class Slow(Scans):
        def __getitem__(self, index: int) -> torch.Tensor:
            total = sum(number * number for number in range(60_000))
            time.sleep(0.004)
            return torch.full((1, SIDE, SIDE, SIDE), float(total % 7))

    train_on(ThreadDataLoader(Slow(0.0), batch_size=1, num_workers=0))


def more_work_than_cores(folder: Path) -> None:
    """A worker that computes for longer than the network; the table says that there is one core."""

    class Computed(Scans):
        def __getitem__(self, index: int) -> torch.Tensor:
            total = sum(number * number for number in range(100_000))
            return torch.full((1, SIDE, SIDE, SIDE), float(total % 7))

    train_on(DataLoader(Computed(0.0), num_workers=1, persistent_workers=True))


def gunzip(folder: Path) -> None:
    """Gzipped scans of noise, unpacked at each use."""
    path = folder / "scan.raw.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).integers(0, 200, 600_000, dtype=np.int16).tobytes()))

    class Packed(Scans):
        def __getitem__(self, index: int) -> torch.Tensor:
            voxels = np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.int16)
            return torch.from_numpy(voxels[: SIDE**3].astype(np.float32)).reshape(1, SIDE, SIDE, SIDE)

    train_on(DataLoader(Packed(0.0)))


def slow_collate(folder: Path) -> None:
    """Collating that goes through the items as if it had to look at each voxel."""

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(0.008)
        return torch.stack(items)

    train_on(DataLoader(Scans(0.0), collate_fn=collate))


def large_batches(folder: Path) -> None:
    """Sixty-four channels, of which the network takes one."""
    train_on(DataLoader(Scans(0.004, channels=64), num_workers=1, persistent_workers=True))


def small_files(folder: Path) -> None:
    """An item of 200 files, one for each line of its slices; none is used twice."""
    for index in range(NUM_STEPS):
        (folder / str(index)).mkdir()
        for number in range(200):
            (folder / str(index) / f"{number}.raw").write_bytes(bytes(SIDE))

    class Slices(Scans):
        def __getitem__(self, index: int) -> torch.Tensor:
            lines = [(folder / str(index) / f"{number}.raw").read_bytes() for number in range(200)]
            voxels = np.frombuffer(b"".join(lines), dtype=np.uint8).astype(np.float32)
            return torch.from_numpy(voxels[: SIDE**3].reshape(1, -1, SIDE, SIDE))

    train_on(DataLoader(Slices(0.0)))
