"""The weights of a Gaussian blur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_TRUNCATE = 4.0


def blur_weights(sigma_voxel: float, side: int) -> npt.NDArray[np.float32]:
    """Weights from -r to r, summing to one; r is four standard deviations, rounded, and below `side`."""
    radius = min(int(_TRUNCATE * sigma_voxel + 0.5), side - 1)
    if sigma_voxel <= 0.0 or radius <= 0:
        return np.ones(1, dtype=np.float32)
    offsets = np.arange(-radius, radius + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (offsets / sigma_voxel) ** 2)
    normalized: npt.NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return normalized
