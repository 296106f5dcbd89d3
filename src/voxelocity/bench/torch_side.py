"""Plain torch's side: the augmentation of a whole batch by one `grid_sample`, as a careful script would write it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import affine_grid, grid_sample
from torch.utils.data import DataLoader, IterableDataset

from voxelocity.bench.stream import OpenStream, passes_of
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume

_ANGLE = math.radians(15.0)
_ZOOM = (0.9, 1.1)


def loaders(
    volumes: Sequence[Volume], *, patch: Index3, batch_size: int, workers: Sequence[int]
) -> dict[str, OpenStream]:
    """Streams of batches (image (b, c, x, y, z) float32, label (b, 1, x, y, z) uint8) by the settings of their loader.

    The same changes as `ours.AS_MONAI`; what lies beyond a patch counts as 0. Without worker processes all of it runs
    on torch's own threads.
    """
    dataset = _Batches(volumes, patch, batch_size)
    return {f"DataLoader(num_workers={number})": functools.partial(_open, dataset, number) for number in workers}


def _open(dataset: _Batches, num_workers: int) -> contextlib.AbstractContextManager[Iterator[Any]]:
    return passes_of(DataLoader(dataset, batch_size=None, num_workers=num_workers))


class _Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches without end; every worker process makes its own."""

    def __init__(self, volumes: Sequence[Volume], patch: Index3, batch_size: int) -> None:
        self._images = [torch.from_numpy(volume.intensities()) for volume in volumes]
        self._labels = [torch.from_numpy(volume.label.copy())[None] for volume in volumes if volume.label is not None]
        self._patch, self._batch_size = patch, batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return _batches(self._images, self._labels, self._patch, self._batch_size)


def _batches(
    images: list[torch.Tensor], labels: list[torch.Tensor], patch: Index3, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        boxes: list[tuple[int, slice, slice, slice]] = []
        for _ in range(batch_size):
            case = int(torch.randint(len(images), ()))
            shape = images[case].shape[1:]
            starts = [int(torch.randint(max(n - s, 0) + 1, ())) for n, s in zip(shape, patch, strict=True)]
            x, y, z = (slice(start, start + side) for start, side in zip(starts, patch, strict=True))
            boxes.append((case, x, y, z))
        image = torch.stack([images[case][:, x, y, z] for case, x, y, z in boxes])
        label = torch.stack([labels[case][:, x, y, z] for case, x, y, z in boxes])
        grid = affine_grid(_matrices(batch_size), list(image.shape), align_corners=False)
        image = grid_sample(image, grid, mode="bilinear", align_corners=False)
        label = grid_sample(label.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)
        per_patch = (batch_size, image.shape[1], 1, 1, 1)
        image *= torch.empty(per_patch).uniform_(0.9, 1.1)
        image += torch.empty(per_patch).uniform_(-0.1, 0.1)
        image += torch.randn_like(image).mul_(torch.empty((batch_size, 1, 1, 1, 1)).uniform_(0.0, 0.1))
        yield image, label


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
