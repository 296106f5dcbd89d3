"""Which voxels a low resolution keeps along an axis, and how the patch is interpolated between them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def low_positions(
    side: int, zoom: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """For each voxel of an axis: the two kept voxels it lies between, and the weight of the second. Each (side,).

    `round(side * zoom)` voxels are kept, those nearest to the centers of that many equal parts ("nearest-exact" of
    torch's `interpolate`). Interpolation between them is linear, without aligned corners, as in torch.
    """
    num_low = max(1, math.floor(side * zoom + 0.5))
    kept = np.minimum(((np.arange(num_low) + 0.5) * (side / num_low)).astype(np.int64), side - 1)
    place = np.clip((np.arange(side) + 0.5) * (num_low / side) - 0.5, 0.0, num_low - 1.0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, num_low - 1)
    return kept[below].astype(np.int32), kept[above].astype(np.int32), (place - below).astype(np.float32)
