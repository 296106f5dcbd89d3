"""Plain torch's side: the augmentation of a whole batch by one `grid_sample`, as a careful script would write it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.functional import affine_grid, grid_sample
from torch.utils.data import DataLoader, IterableDataset

from voxelocity_lab.bench.streams import OpenStream, RandomBoxes, Work, passes_of

_ANGLE = math.radians(15.0)
_ZOOM = (0.9, 1.1)


def streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """Batches (image (b, c, x, y, z) float32, label (b, 1, x, y, z) uint8) by the settings of their loader.

    The same changes as `streams.AS_MONAI`; what lies beyond a patch counts as 0. Without worker processes all of it
    runs on torch's own threads.
    """
    assert chain == "affine", chain
    dataset = _WholeBatches(RandomBoxes(work.volumes, work.patch, device=work.device), work.batch_size)

    return {f"DataLoader(num_workers={number})": functools.partial(_open, dataset, number) for number in work.workers}


def _open(dataset: _WholeBatches, num_workers: int) -> AbstractContextManager[Iterator[Any]]:
    return passes_of(DataLoader(dataset, batch_size=None, num_workers=num_workers))


class _WholeBatches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches without end; every worker process makes its own."""

    def __init__(self, boxes: RandomBoxes, batch_size: int) -> None:
        self._boxes, self._batch_size = boxes, batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            cut = [self._boxes.cut(int(torch.randint(len(self._boxes), ()))) for _ in range(self._batch_size)]
            image, label = (torch.stack(tensors) for tensors in zip(*cut, strict=True))
            yield _augmented(image, label)


def _augmented(image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch_size = len(image)
    grid = affine_grid(_matrices(batch_size).to(image), list(image.shape), align_corners=False)
    image = grid_sample(image, grid, mode="bilinear", align_corners=False)
    label = grid_sample(label.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)
    per_patch = (batch_size, image.shape[1], 1, 1, 1)
    image *= image.new_empty(per_patch).uniform_(0.9, 1.1)
    image += image.new_empty(per_patch).uniform_(-0.1, 0.1)
    image += torch.randn_like(image).mul_(image.new_empty((batch_size, 1, 1, 1, 1)).uniform_(0.0, 0.1))
    return image, label


def _matrices(batch_size: int) -> torch.Tensor:
    """Rotation, zoom and flips: (b, 3, 4)."""
    angles = torch.empty((batch_size, 3)).uniform_(-_ANGLE, _ANGLE)
    result = torch.eye(3).repeat(batch_size, 1, 1)
    for axis in range(3):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = torch.eye(3).repeat(batch_size, 1, 1)
        cosine, sine = torch.cos(angles[:, axis]), torch.sin(angles[:, axis])
        turn[:, first, first], turn[:, second, second] = cosine, cosine
        turn[:, first, second], turn[:, second, first] = -sine, sine
        result = turn @ result
    flips = torch.where(torch.rand((batch_size, 1, 3)) < 0.5, -1.0, 1.0)
    zoom = torch.empty((batch_size, 1, 1)).uniform_(*_ZOOM)
    return torch.cat([result * flips / zoom, torch.zeros((batch_size, 3, 1))], dim=2)
