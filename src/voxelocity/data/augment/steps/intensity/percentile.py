"""Percentiles of a patch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.data.augment.steps.intensity.statistic import Facts

_MAX_FLOAT32_RANKS = 1_000_000
"""Up to this many voxels a rank is computed in float32, as in `torch.quantile`; beyond, in float64, as in NumPy."""


def percentiles(patch: torch.Tensor, shares: Sequence[float], *, per_channel: bool) -> Facts:
    """(c, shares) of each channel of `patch` (c, x, y, z), or of all channels together, repeated for each channel.

    Shares are percentiles, 0 to 100, interpolated between two voxels' values.
    """
    rows = (patch.flatten(1) if per_channel else patch.reshape(1, -1)).cpu().numpy()
    found = np.array([_of_row(row, shares) for row in rows], np.float64)
    return np.broadcast_to(found, (len(patch), len(shares)))


def _of_row(row: np.ndarray[tuple[int], np.dtype[np.float32]], shares: Sequence[float]) -> list[float]:
    last = row.size - 1
    is_small = row.size <= _MAX_FLOAT32_RANKS
    ranks = [
        float(np.float32(share / 100.0) * np.float32(last)) if is_small else share / 100.0 * last for share in shares
    ]
    belows = [min(int(rank), last) for rank in ranks]
    if np.isnan(row).any():
        return [np.nan for _ in ranks]
    wanted = sorted({place for below in belows for place in (below, min(below + 1, last))})
    ordered = np.partition(row, wanted)
    return [
        float(ordered[below] + (rank - below) * (ordered[min(below + 1, last)] - ordered[below]))
        for rank, below in zip(ranks, belows, strict=True)
    ]
