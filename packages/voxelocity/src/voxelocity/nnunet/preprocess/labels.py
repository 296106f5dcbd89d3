"""The places of the classes of a preprocessed case: those that nnU-Net draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxelocity.infer.models.nnunet_labels import Int16
from voxelocity.nnunet.preprocess.raw import ClassKey

# nnU-Net's `_sample_foreground_locations`.
_SEED, _LEAST_PLACES, _LEAST_SHARE = 1234, 10_000, 0.01


def sample_places(label_xyz: Int16, classes: Sequence[ClassKey]) -> dict[ClassKey, Any]:
    """Places (n, 4) int64 of some voxels of each class or region, channel 0 first: those that nnU-Net draws.

    Args:
        label_xyz: int16, in C order.
        classes: in nnU-Net's order, with which its random numbers go.
    """
    rng = np.random.RandomState(_SEED)
    wanted = sorted({label for part in classes for label in _labels_of(part)})
    flat = label_xyz.reshape(-1)
    # The last place is that of -1.
    is_wanted = np.zeros(max(int(flat.max()), *wanted, 0) + 2, dtype=bool)
    is_wanted[wanted] = True
    chosen = np.flatnonzero(is_wanted[flat])
    values = flat[chosen]
    # Of 16 bits, numpy sorts by radix. Equal labels keep the order of their voxels.
    chosen = chosen[np.argsort(values, kind="stable")]
    counts = np.bincount(values.astype(np.intp) + 1, minlength=len(is_wanted))
    ends = np.cumsum(counts)
    places: dict[ClassKey, Any] = {}
    for part in classes:
        ranges = [(int(ends[n + 1] - counts[n + 1]), int(counts[n + 1])) for n in _labels_of(part) if counts[n + 1]]
        total = sum(count for _, count in ranges)
        if total == 0:
            places[part] = []
            continue
        num = max(min(_LEAST_PLACES, total), int(np.ceil(total * _LEAST_SHARE)))
        offsets = rng.choice(total, num, replace=False)
        stops = np.cumsum([count for _, count in ranges])
        which = np.searchsorted(stops, offsets, side="right")
        firsts = np.array([start for start, _ in ranges]) - np.concatenate(([0], stops[:-1]))
        picked = chosen[offsets + firsts[which]]
        places[part] = np.stack([np.zeros_like(picked), *np.unravel_index(picked, label_xyz.shape)], axis=1)
    return places


def _labels_of(part: ClassKey) -> tuple[int, ...]:
    return part if isinstance(part, tuple) else (part,)
