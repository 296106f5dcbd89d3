"""The intensity steps of a patch, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from voxelocity.data.augment.steps.fill import Fill, fill
from voxelocity.data.augment.steps.intensity import IntensityStep


def change(patch: torch.Tensor, steps: Sequence[IntensityStep]) -> None:
    """Makes the steps on `patch` (c, x, y, z) float32, in place, one after the other."""
    for step in steps:
        if isinstance(step, Fill):
            fill(patch, step)
            continue
        scale, shift = (
            torch.from_numpy(value).view(-1, 1, 1, 1).to(patch.device) for value in (step.scale, step.shift)
        )
        patch.mul_(scale).add_(shift)
