"""Dice from counts of (truth, prediction) pairs: accumulated on a device while training, or once for a whole case.

Dice of a class is 2 * intersection / (voxels in truth + voxels in prediction), and None if the class is in neither, so
that means leave it out, as in nnU-Net.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity_observe.core.errors import ScanError

IntArray = npt.NDArray[np.integer[Any]]
PairCounts = npt.NDArray[np.int64]
# Codes of four bytes per voxel are made for this many voxels at once: 64 MiB.
_SLAB_VOXELS = 2**24
# 224³ voxels of noise in 14 classes: 0.04 s; with codes of the whole volume 0.1 to 0.8 s, because their pages are new.
_PART_VOXELS = 2**18


class DiceCounts:
    """Dice over everything that was added, pooled as one volume. For the Dice of a case, use one object per case.

    The counts stay on the device of the first tensor added: of pairs, or of each class if there are more than 256. Not
    thread-safe.

    Args:
        num_classes: including the background.
        ignored: whether truth may have one more index after those of the classes, whose voxels do not count.
    """

    def __init__(self, num_classes: int, *, ignored: bool = False) -> None:
        self._num_known = num_classes
        self._num_classes = num_classes + ignored
        self._is_wide = self._num_classes > MAX_BYTE_CLASSES
        self._counts: torch.Tensor | None = None

    def add(self, prediction: torch.Tensor, truth: torch.Tensor) -> None:
        """Counts the voxels of two tensors of one shape and device. Never waits for an accelerator.

        Args:
            prediction: any shape, integer class indices.
            truth: the same. Does not check for indices outside 0 to num_classes - 1, because it would have to wait.

        Raises:
            ValueError: the shapes differ.
        """
        if prediction.shape != truth.shape:
            raise ValueError(
                f"metrics.dice: prediction {tuple(prediction.shape)} and truth {tuple(truth.shape)} differ in shape; "
                "bring both onto one grid"
            )
        k = self._num_classes
        shape = (3, k) if self._is_wide else (k**2,)
        if self._counts is None:
            self._counts = torch.zeros(shape, dtype=torch.int64, device=truth.device)
        flat_truth, flat_prediction = truth.reshape(-1), prediction.reshape(-1)
        for start in range(0, truth.numel(), _SLAB_VOXELS):
            part = slice(start, start + _SLAB_VOXELS)
            # int32 on a CPU: 1.7 times as fast as int64 (128³ voxels, two cores).
            rows, columns = flat_truth[part].to(torch.int32, copy=True), flat_prediction[part]
            if self._is_wide:
                self._add_wide(rows, columns.to(torch.int32))
            else:
                self._counts += _histogram(rows.mul_(k).add_(columns), k**2)

    def _add_wide(self, truth: torch.Tensor, prediction: torch.Tensor) -> None:
        """Counts the voxels of each class in truth, in prediction and in both: pairs of many classes are too many."""
        assert self._counts is not None
        k = self._num_classes
        if self._num_known < k:
            prediction = torch.where(truth == self._num_known, truth, prediction)
        agreed = torch.where(truth == prediction, truth, k)
        for row, codes in enumerate((truth, prediction, agreed)):
            self._counts[row] += _histogram(codes, k + 1)[:k]

    def dice_of(self, scored: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
        """Dice of each group of class indices, which may overlap; None for a group in neither. Waits for the device."""
        k, known = self._num_classes, slice(0, self._num_known)
        if self._is_wide:
            found = np.zeros((3, k), np.int64) if self._counts is None else self._counts.cpu().numpy()
            return dice_of_tables(tables_of_classes(found[:, known], scored))
        counts = np.zeros((k, k), np.int64) if self._counts is None else self._counts.cpu().numpy().reshape(k, k)
        return dice_of_tables(merged_pairs(counts[known, known], scored))


def _histogram(codes: torch.Tensor, num_codes: int) -> torch.Tensor:
    """How often each code from 0 occurs; (n,) int32 to (num_codes,) integer. Never waits for a device."""
    if codes.device.type == "cpu":
        return torch.bincount(codes, minlength=num_codes)
    # torch.bincount reads the largest code to size its result, which waits for CUDA. scatter_add_ sends almost all of
    # its atomics to one address, the count of background in both; histc counts in each block's own memory, and exactly,
    # because the codes are integers and each has its own bin.
    return torch.histc(codes, bins=num_codes, min=0, max=num_codes)


def count_pairs(prediction: IntArray, truth: IntArray, *, num_classes: int) -> PairCounts:
    """Voxels by truth (row) and prediction (column), (num_classes, num_classes) int64.

    Args:
        prediction: any shape, class indices.
        truth: the same.
        num_classes: including the background.

    Raises:
        ScanError: the shapes differ, or an index is not below `num_classes`.
    """
    _check_indices(prediction, truth, num_classes)
    pairs = np.zeros(num_classes**2, dtype=np.int64)
    # Both in the same memory order, and in parts whose codes of eight bytes stay in the CPU's cache.
    rows, columns = truth.reshape(-1), prediction.reshape(-1)
    for start in range(0, truth.size, _PART_VOXELS):
        part = slice(start, start + _PART_VOXELS)
        pairs += np.bincount(rows[part].astype(np.intp) * num_classes + columns[part], minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes)


def _check_indices(prediction: IntArray, truth: IntArray, num_classes: int) -> None:
    if prediction.shape != truth.shape:
        raise ScanError(
            f"metrics.dice: prediction {prediction.shape} and truth {truth.shape} differ in shape; "
            "bring both onto one grid"
        )
    for name, indices in (("truth", truth), ("prediction", prediction)):
        low, high = int(indices.min(initial=0)), int(indices.max(initial=0))
        if low < 0 or high >= num_classes:
            raise ScanError(
                f"metrics.dice: the {name} holds class index {high if high >= num_classes else low}, but there are "
                f"{num_classes} classes; pass class indices, not file values"
            )


def count_tables(
    prediction: IntArray, truth: IntArray, scored: Sequence[Sequence[int]], *, num_classes: int
) -> PairCounts:
    """As `merged_pairs` of `count_pairs`, (g, 2, 2), for any number of classes.

    Args:
        prediction: any shape, class indices.
        truth: the same.
        scored: groups of class indices.
        num_classes: including the background.

    Raises:
        ScanError: as `count_pairs`.
    """
    if num_classes <= MAX_BYTE_CLASSES:
        return merged_pairs(count_pairs(prediction, truth, num_classes=num_classes), scored)
    _check_indices(prediction, truth, num_classes)
    if any(len(indices) != 1 for indices in scored):
        tables = [np.isin(np.arange(num_classes), indices).astype(np.uint8) for indices in scored]
        return np.array([count_pairs(table[prediction], table[truth], num_classes=2) for table in tables])
    counts = np.zeros((3, num_classes), dtype=np.int64)
    rows, columns = truth.reshape(-1), prediction.reshape(-1)
    for start in range(0, truth.size, _PART_VOXELS):
        both = rows[start : start + _PART_VOXELS], columns[start : start + _PART_VOXELS]
        for row, indices in enumerate((*both, both[0][both[0] == both[1]])):
            counts[row] += np.bincount(indices, minlength=num_classes)
    return tables_of_classes(counts, scored)


def tables_of_classes(counts: PairCounts, scored: Sequence[Sequence[int]]) -> PairCounts:
    """As `merged_pairs`, of single classes, from their voxels in truth, in prediction and in both, (3, k)."""
    indices = [index for (index,) in scored]
    truth, prediction, both = counts[:, indices]
    outside = counts[0].sum() - truth - prediction + both
    return np.stack([outside, prediction - both, truth - both, both], axis=1).reshape(-1, 2, 2)


def merged_pairs(pairs: PairCounts, scored: Sequence[Sequence[int]]) -> PairCounts:
    """For each group of class indices, a table of two: voxels (outside, inside) in truth and prediction, (g, 2, 2)."""
    inside = np.zeros((len(scored), len(pairs)), dtype=np.int64)
    for number, indices in enumerate(scored):
        inside[number, list(indices)] = 1
    both = np.stack([1 - inside, inside], axis=1)
    merged: PairCounts = both @ pairs @ both.swapaxes(1, 2)
    return merged


def dice_of_tables(tables: PairCounts) -> tuple[float | None, ...]:
    """Dice of each group from its table of `merged_pairs`, (g, 2, 2); None for a group in neither."""
    voxels = tables[:, 1].sum(axis=1) + tables[:, :, 1].sum(axis=1)
    return tuple(2.0 * int(i) / int(n) if n else None for i, n in zip(tables[:, 1, 1], voxels, strict=True))
