"""TorchIO's side: its random affine, flips and noise on patches from memory. Imported only where it is installed.

TorchIO 1 changes one patch at a time; version 2, of which there are pre-releases, also whole batches. Both are run as
`ours.AS_MONAI` says, except that TorchIO has no random scale and shift of intensities: these are left out.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torchio

from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume

TAKES_BATCHES = hasattr(torchio, "SubjectsBatch")
"""Whether this is version 2, whose transforms take a batch and draw numbers of their own for each patch in it."""
_SCALES, _DEGREES, _NOISE_STD = (0.9, 1.1), (-15.0, 15.0), (0.0, 0.1)


class AugmentedPatches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Patches by case index, changed one by one: image (c, x, y, z) float32, label (1, x, y, z).

    Args:
        volumes: prepared cases.
        patch: of the result.
    """

    def __init__(self, volumes: Sequence[Volume], patch: Index3) -> None:
        self._images = [torch.from_numpy(volume.intensities()) for volume in volumes]
        self._labels = [torch.from_numpy(volume.label.copy())[None] for volume in volumes if volume.label is not None]
        self._patch = patch
        self._chain = _chain()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.cut(index)
        made = self._chain(_subject(image, label))
        return {"image": made["image"].data, "label": made["label"].data}

    def cut(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A box anywhere in this case, unchanged: views of image and label."""
        shape = self._images[index].shape[1:]
        starts = [int(torch.randint(max(n - s, 0) + 1, ())) for n, s in zip(shape, self._patch, strict=True)]
        box = tuple(slice(start, start + side) for start, side in zip(starts, self._patch, strict=True))
        return self._images[index][(slice(None), *box)], self._labels[index][(slice(None), *box)]


@contextlib.contextmanager
def batched(patches: AugmentedPatches, batch_size: int) -> Iterator[Iterator[dict[str, torch.Tensor]]]:
    """Batches changed as a whole, on torch's own threads. Version 2 only.

    Args:
        patches: where boxes are cut.
        batch_size: patches in a batch.
    """
    yield _batches(patches, batch_size)


def _batches(patches: AugmentedPatches, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    # The batch is made by `stack` and shared with nothing, so it need not be copied again.
    chain = _chain(copy=False)
    affines = [torchio.AffineMatrix() for _ in range(batch_size)]
    numbers = itertools.count()
    while True:
        pairs = [patches.cut(next(numbers) % len(patches)) for _ in range(batch_size)]
        image, label = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        made = chain(
            torchio.SubjectsBatch(
                {
                    "image": torchio.ImagesBatch(image, affines, image_class=torchio.ScalarImage),
                    "label": torchio.ImagesBatch(label, affines, image_class=torchio.LabelMap),
                }
            )
        )
        yield {"image": made["image"].data, "label": made["label"].data}


def _subject(image: torch.Tensor, label: torch.Tensor) -> Any:
    if TAKES_BATCHES:
        return torchio.Subject(image=torchio.ScalarImage(image), label=torchio.LabelMap(label))
    return torchio.Subject(image=torchio.ScalarImage(tensor=image), label=torchio.LabelMap(tensor=label))


def _chain(**options: Any) -> Any:
    """The transforms, under the names of the version that is installed."""
    if TAKES_BATCHES:
        steps = [
            torchio.Affine(scales=_SCALES, degrees=_DEGREES, default_pad_value=0.0),
            torchio.Flip(axes=(0, 1, 2), flip_probability=0.5),
            torchio.Noise(std=_NOISE_STD),
        ]
    else:
        steps = [
            torchio.RandomAffine(scales=_SCALES, degrees=_DEGREES, default_pad_value=0.0),
            torchio.RandomFlip(axes=(0, 1, 2), flip_probability=0.5),
            torchio.RandomNoise(std=_NOISE_STD),
        ]
    return torchio.Compose(steps, **options)
