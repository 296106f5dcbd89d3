"""What `infer.window` must compute, window by window and in float64. Slow on purpose: nothing is shared or kept."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.region import Index3

FloatArray = npt.NDArray[np.float64]


def reference_probabilities(
    forward: Callable[[torch.Tensor], torch.Tensor],
    image_cxyz: torch.Tensor,
    *,
    shape_voxel: Index3,
    overlap: float,
    blend: str = "gaussian",
    sigma_scale: float = 0.125,
    mirror_axes: tuple[int, ...] = (),
) -> FloatArray:
    """Class probabilities (k, x, y, z) float64 of one volume on the CPU, one forward pass per window and mirroring."""
    inside = image_cxyz.shape[1:]
    before = [max(0, w - n) // 2 for n, w in zip(inside, shape_voxel, strict=True)]
    padded_shape = [max(n, w) for n, w in zip(inside, shape_voxel, strict=True)]
    padded = torch.zeros((image_cxyz.shape[0], *padded_shape))
    here = tuple(slice(b, b + n) for b, n in zip(before, inside, strict=True))
    padded[(slice(None), *here)] = image_cxyz

    weights = _weights(shape_voxel, blend, sigma_scale)
    total: FloatArray | None = None
    total_weight = np.zeros(padded_shape)
    for x in _starts(padded_shape[0], shape_voxel[0], overlap):
        for y in _starts(padded_shape[1], shape_voxel[1], overlap):
            for z in _starts(padded_shape[2], shape_voxel[2], overlap):
                box = tuple(slice(s, s + w) for s, w in zip((x, y, z), shape_voxel, strict=True))
                logits = _mean_over_mirrorings(forward, padded[(slice(None), *box)], mirror_axes)
                if total is None:
                    total = np.zeros((logits.shape[0], *padded_shape))
                total[(slice(None), *box)] += logits * weights
                total_weight[box] += weights
    assert total is not None, "a volume has at least one window"
    blended: FloatArray = (total / total_weight)[(slice(None), *here)]
    exponential = np.exp(blended - blended.max(axis=0))
    probabilities: FloatArray = exponential / exponential.sum(axis=0)
    return probabilities


def _mean_over_mirrorings(
    forward: Callable[[torch.Tensor], torch.Tensor], window_cxyz: torch.Tensor, mirror_axes: tuple[int, ...]
) -> FloatArray:
    outputs = []
    for choice in range(2 ** len(mirror_axes)):
        axes = [axis + 1 for bit, axis in enumerate(mirror_axes) if choice >> bit & 1]
        with torch.no_grad():
            logits = forward(torch.flip(window_cxyz, axes)[None])[0]
        outputs.append(torch.flip(logits, axes).double().numpy())
    mean: FloatArray = np.mean(outputs, axis=0)
    return mean


def _starts(length: int, window: int, overlap: float) -> list[int]:
    """Starts from 0 in steps of the part not overlapped, until the volume is covered; the last is moved back inside."""
    step = max(1, int(window * (1.0 - overlap)))
    starts = [0]
    while starts[-1] + window < length:
        starts.append(min(starts[-1] + step, length - window))
    return starts


def _weights(shape: Index3, blend: str, sigma_scale: float) -> FloatArray:
    weights = np.ones(shape)
    if blend == "gaussian":
        for index in np.ndindex(*shape):
            distance = sum(((i - (n - 1) / 2) / (n * sigma_scale)) ** 2 for i, n in zip(index, shape, strict=True))
            weights[index] = max(math.exp(-distance / 2), 1e-3)
    return weights
