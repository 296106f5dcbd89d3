"""Small programs with one fault each between the steps: in validation or in saving."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_EPOCHS = 4
NUM_STEPS = 10
SIDE = 12


class Slow(nn.Module):
    """A network that takes a while to learn, whatever else runs on this machine's cores."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.layers, self.wait_s = nn.Sequential(nn.Conv3d(1, 8, 3), nn.Conv3d(8, 2, 3)), wait_s

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.wait_s)
        return self.layers(images)


def _train(between: Callable[[nn.Module], object], *, wait_s: float = 0.0) -> None:
    network = Slow(wait_s)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    batch = torch.zeros(1, 1, SIDE, SIDE, SIDE)
    for _ in range(NUM_EPOCHS):
        network.train()
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
        network.eval()
        between(network)


def large_validation(folder: Path) -> None:
    """Validates longer than it trains."""

    def validate(network: nn.Module) -> None:
        with torch.no_grad():
            for _ in range(60):
                network(torch.zeros(1, 1, SIDE, SIDE, SIDE))

    _train(validate)


def gradients_in_validation(folder: Path) -> None:
    """Validates without `torch.no_grad()`."""
    _train(lambda network: [network(torch.zeros(1, 1, SIDE, SIDE, SIDE)) for _ in range(8)])


def waiting_validation(folder: Path) -> None:
    """Reads its scans in validation, one after the other, from a source that answers late."""

    class Scans(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.015)
            return torch.zeros(1, SIDE, SIDE, SIDE)

    loader = DataLoader(Scans())

    def validate(network: nn.Module) -> None:
        with torch.no_grad():
            for scan in loader:
                network(scan)

    _train(validate, wait_s=0.02)


def slow_metrics(folder: Path) -> None:
    """Takes longer over a prediction than to make it; both together are a fifth of the time."""

    def validate(network: nn.Module) -> None:
        with torch.no_grad():
            for _ in range(2):
                network(torch.zeros(1, 1, SIDE, SIDE, SIDE))
                time.sleep(0.025)

    _train(validate, wait_s=0.02)


def frequent_saving(folder: Path) -> None:
    """Saves a large state after each short epoch."""
    state = {"weights": torch.zeros(4_000_000)}
    _train(lambda network: torch.save(state, folder / "last.pt"))


def overlapping_windows(folder: Path) -> None:
    """Validates with windows that share three quarters of theirs with the next."""
    from monai.inferers import sliding_window_inference

    scan = torch.zeros(1, 1, 2 * SIDE, 2 * SIDE, 2 * SIDE)

    def validate(network: nn.Module) -> None:
        def same_size(window: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(network(window), [2] * 6)

        with torch.no_grad():
            for _ in range(4):
                sliding_window_inference(scan, (SIDE, SIDE, SIDE), 4, same_size, overlap=0.75)

    _train(validate)
