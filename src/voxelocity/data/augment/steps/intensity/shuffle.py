"""Voxels of a box in another order."""

from __future__ import annotations

import torch

from voxelocity.data.augment.steps.intensity.field import Shuffle


def shuffle(patch: torch.Tensor, step: Shuffle) -> None:
    """Applies the step to `patch` (c, x, y, z) in place, on any device."""
    box = tuple(slice(start, start + length) for start, length in zip(step.start, step.shape, strict=True))
    for channel, order in zip(patch, step.orders, strict=True):
        place = channel[box]
        place.copy_(place.reshape(-1)[torch.from_numpy(order).to(patch.device)].view(step.shape))
