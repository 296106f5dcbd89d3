"""TorchIO's side: its random affine, flips and noise on patches from memory.

TorchIO 1 changes one patch at a time; version 2, of which there are pre-releases, also whole batches. Both are run as
`streams.AS_MONAI` says, except that TorchIO has no random scale and shift of intensities: these are left out.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torchio

from voxelocity_lab.bench.peers import monai
from voxelocity_lab.bench.streams import OpenStream, RandomBoxes, Work

TAKES_BATCHES = hasattr(torchio, "SubjectsBatch")
"""Whether this is version 2, whose transforms take a batch and draw numbers of their own for each patch in it."""
_SCALES, _DEGREES, _NOISE_STD = (0.9, 1.1), (-15.0, 15.0), (0.0, 0.1)


def streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """Patches in MONAI's loaders and, of version 2, whole batches."""
    assert chain == "affine", chain
    dataset = AugmentedPatches(work.volumes, work.patch)
    found = monai.loaders(dataset, work)
    if TAKES_BATCHES:
        found["a whole batch at once"] = functools.partial(open_batches, dataset, work.batch_size)
    return found


class AugmentedPatches(RandomBoxes, torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Patches by case index, changed one by one: image (c, x, y, z) float32, label (1, x, y, z)."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = _chain()(_subject(*self.cut(index)))
        return {"image": made["image"].data, "label": made["label"].data}


@contextlib.contextmanager
def open_batches(patches: RandomBoxes, batch_size: int) -> Iterator[Iterator[dict[str, torch.Tensor]]]:
    """Batches changed as a whole, on torch's own threads. Version 2 only."""
    yield _batches(patches, batch_size)


def _batches(patches: RandomBoxes, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    # The batch is made by `stack` and shared with nothing, so it need not be copied again.
    chain = _chain(copy=False)
    affines = [torchio.AffineMatrix() for _ in range(batch_size)]
    numbers = itertools.count()
    while True:
        pairs = [patches.cut(next(numbers) % len(patches)) for _ in range(batch_size)]
        image, label = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        images = {
            "image": torchio.ImagesBatch(image, affines, image_class=torchio.ScalarImage),
            "label": torchio.ImagesBatch(label, affines, image_class=torchio.LabelMap),
        }
        made = chain(torchio.SubjectsBatch(images))
        yield {"image": made["image"].data, "label": made["label"].data}


def _subject(image: torch.Tensor, label: torch.Tensor) -> Any:
    if TAKES_BATCHES:
        return torchio.Subject(image=torchio.ScalarImage(image), label=torchio.LabelMap(label))
    return torchio.Subject(image=torchio.ScalarImage(tensor=image), label=torchio.LabelMap(tensor=label))


@functools.cache
def _chain(**options: Any) -> Any:
    """The transforms, under the names of the version that is installed."""
    affine, flip, noise = (
        getattr(torchio, name if TAKES_BATCHES else f"Random{name}") for name in ("Affine", "Flip", "Noise")
    )
    steps = [
        affine(scales=_SCALES, degrees=_DEGREES, default_pad_value=0.0),
        flip(axes=(0, 1, 2), flip_probability=0.5),
        noise(std=_NOISE_STD),
    ]
    return torchio.Compose(steps, **options)
