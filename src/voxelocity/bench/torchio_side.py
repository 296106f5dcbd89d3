"""TorchIO's side: its random affine, flips and noise on patches from memory. Imported only where it is installed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torchio

from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume


class AugmentedPatches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Patches by case index, changed as `ours.AS_MONAI` says; TorchIO has no scale and shift, so these are left out.

    Args:
        volumes: prepared cases.
        patch: of the result.
    """

    def __init__(self, volumes: Sequence[Volume], patch: Index3) -> None:
        self._images = [torch.from_numpy(volume.intensities()) for volume in volumes]
        self._labels = [torch.from_numpy(volume.label.copy())[None] for volume in volumes if volume.label is not None]
        self._patch = patch
        self._chain = torchio.Compose(
            [
                torchio.RandomAffine(scales=(0.9, 1.1), degrees=15.0, default_pad_value=0.0),
                torchio.RandomFlip(axes=(0, 1, 2), flip_probability=0.5),
                torchio.RandomNoise(std=(0.0, 0.1)),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        shape = self._images[index].shape[1:]
        starts = [int(torch.randint(max(n - s, 0) + 1, ())) for n, s in zip(shape, self._patch, strict=True)]
        box = tuple(slice(start, start + side) for start, side in zip(starts, self._patch, strict=True))
        subject = torchio.Subject(
            image=torchio.ScalarImage(tensor=self._images[index][(slice(None), *box)]),
            label=torchio.LabelMap(tensor=self._labels[index][(slice(None), *box)]),
        )
        made = self._chain(subject)
        assert math.prod(made["image"].data.shape[1:]) == math.prod(self._patch)
        return {"image": made["image"].data, "label": made["label"].data}
