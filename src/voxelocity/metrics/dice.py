"""Dice from counts of (truth, prediction) pairs: accumulated on a device while training, or once for a whole case.

Dice of a class is 2 * intersection / (voxels in truth + voxels in prediction), and 1.0 where the class is in neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.errors import ScanError

IntArray = npt.NDArray[np.integer[Any]]
PairCounts = npt.NDArray[np.int64]


class DiceCounts:
    """Dice over everything that was added, pooled as if it were one volume. For Dice of a case use one object a case.

    The counts live on the device of the first tensor added. Not thread-safe.

    Args:
        num_classes: with the background.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._pairs: torch.Tensor | None = None

    def add(self, prediction: torch.Tensor, truth: torch.Tensor) -> None:
        """Counts the voxels of two tensors of one shape and device. On an accelerator nothing is waited for.

        Args:
            prediction: any shape, integer class indices.
            truth: the same. Indices outside 0 to num_classes - 1 are not looked for, since that would have to wait.

        Raises:
            ValueError: the shapes differ.
        """
        if prediction.shape != truth.shape:
            raise ValueError(
                f"metrics.dice: prediction {tuple(prediction.shape)} and truth {tuple(truth.shape)} differ in shape; "
                "bring both onto one grid"
            )
        num_pairs = self._num_classes**2
        if self._pairs is None:
            self._pairs = torch.zeros(num_pairs, dtype=torch.int64, device=truth.device)
        if truth.device.type == "cpu":
            # 1.7 times as fast as on int64, 3 times as fast as scatter_add_ (128³ voxels, two cores).
            codes = truth.to(torch.int32).mul_(self._num_classes).add_(prediction)
            self._pairs += torch.bincount(codes.flatten(), minlength=num_pairs)
        else:
            # torch.bincount reads the largest code to size its result, for which CUDA has to be waited for.
            codes = truth.to(torch.int64).mul_(self._num_classes).add_(prediction)
            self._pairs.scatter_add_(0, codes.flatten(), codes.new_ones(()).expand(codes.numel()))

    def dice(self) -> tuple[float, ...]:
        """Dice per class index, background first. Waits for the device."""
        k = self._num_classes
        if self._pairs is None:
            return (1.0,) * k
        return dice_of_pairs(self._pairs.cpu().numpy().reshape(k, k))


def count_pairs(prediction: IntArray, truth: IntArray, *, num_classes: int) -> PairCounts:
    """Voxels by truth (row) and prediction (column), (num_classes, num_classes) int64.

    Args:
        prediction: any shape, class indices.
        truth: the same.
        num_classes: with the background.

    Raises:
        ScanError: the shapes differ, or an index is not below `num_classes`.
    """
    if prediction.shape != truth.shape:
        raise ScanError(
            f"metrics.dice: prediction {prediction.shape} and truth {truth.shape} differ in shape; "
            "bring both onto one grid"
        )
    # Most voxels are background in both and need no code of 8 bytes.
    either = (truth != 0) | (prediction != 0)
    rows, columns = truth[either].astype(np.intp), prediction[either].astype(np.intp)
    for name, indices in (("truth", rows), ("prediction", columns)):
        if indices.size and not 0 <= indices.min() <= indices.max() < num_classes:
            wrong = int(indices.max()) if indices.max() >= num_classes else int(indices.min())
            raise ScanError(
                f"metrics.dice: the {name} holds class index {wrong}, but there are {num_classes} classes; "
                "pass class indices, not file values"
            )
    pairs = np.bincount(rows * num_classes + columns, minlength=num_classes**2).reshape(num_classes, num_classes)
    pairs[0, 0] += truth.size - rows.size
    return pairs.astype(np.int64, copy=False)


def dice_of_pairs(pairs: PairCounts) -> tuple[float, ...]:
    """Dice per class index from counts by (truth, prediction), (k, k)."""
    intersection, voxels = np.diagonal(pairs), pairs.sum(axis=0) + pairs.sum(axis=1)
    return tuple(2.0 * int(i) / int(n) if n else 1.0 for i, n in zip(intersection, voxels, strict=True))
