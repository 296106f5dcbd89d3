"""Fields smoothed along each axis, with zeros beyond their border."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.core.native import has_loops
from voxelocity.monai.steps.intensity import native_loops
from voxelocity.monai.steps.intensity.pointwise import Floats


def smoothed(fields: Floats, kernel: Floats, *, engine: str = "auto") -> Floats:
    """New fields (c, x, y, z) float32, smoothed along x, then y, then z.

    Args:
        fields: (c, x, y, z) float32, only read.
        kernel: (2 * radius + 1,) float32, symmetric.
        engine: "auto" is a compiled loop where there are some, "torch" plain torch.
    """
    if engine == "torch" or not has_loops():
        by_torch: Floats = convolved(torch.from_numpy(fields), (kernel, kernel, kernel)).numpy()
        return by_torch
    made = np.empty(fields.shape, np.float32)
    native_loops.smooth(np.ascontiguousarray(fields), kernel, made)
    return made


def convolved(values: torch.Tensor, weights: Sequence[Floats]) -> torch.Tensor:
    """(c, x, y, z) float32 on any device, each axis convolved with its own weights, symmetric and of odd length."""
    values = values[:, None]
    for axis, kernel in enumerate(weights):
        shape, pad = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[axis + 2], pad[axis] = -1, len(kernel) // 2
        taps = torch.from_numpy(kernel).to(values.device).view(shape)
        values = torch.nn.functional.conv3d(values, taps, padding=pad)
    return values[:, 0]
