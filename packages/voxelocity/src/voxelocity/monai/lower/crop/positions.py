"""The voxels that a crop may be centered on, counted and looked up without making a list of them.

MONAI makes the whole list for each crop (8 bytes per voxel) and takes a few of it; the positions here are the same.
Those of a label on a device are found once, and kept on the host as long as the label lives: drawing one waits for
nothing.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from voxelocity.core.jit import has_numba
from voxelocity.monai.lower import on_device

Engine = Literal["auto", "torch"]
_Found = TypeVar("_Found")
_LABELS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
_IMAGES = (torch.uint8, torch.int8, torch.int16, torch.float32, torch.float64)
_MOST_CLASSES = 32_000  # their marks are int16


class FlatIndices:
    """Flat positions (C order over the spatial axes) of the voxels of one kind, in ascending order.

    Like a list of them as far as `len` and single items go; reads the label when an item is asked for.
    """

    def __init__(self, counts: npt.NDArray[np.int64], find: Callable[[int, int], int]) -> None:
        """The positions of a label.

        Args:
            counts: (planes,), how many there are in each plane of the first axis.
            find: the place of the voxel (plane, how many before it in the plane).
        """
        self._ends = np.cumsum(counts)
        self._find = find
        # Which of them count, by number; None for all.
        self._taken: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if self._taken is not None:
            return len(self._taken)
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(f"place {number} of {len(self)} was asked for")
        if self._taken is not None:
            number = int(self._taken[number])
        plane = int(np.searchsorted(self._ends, number, side="right"))
        return int(self._find(plane, number - (int(self._ends[plane - 1]) if plane else 0)))

    def at_most(self, num: int | None) -> FlatIndices:
        """An even selection of `num` of these if there are more; all if it is None or 0."""
        if not num or len(self) <= max(num, 1):
            return self
        positions = copy.copy(self)
        positions._taken = np.round(np.linspace(0, len(self) - 1, num)).astype(np.int64)
        return positions


def binary_positions(
    label: torch.Tensor,
    image: torch.Tensor | None,
    threshold: float,
    *,
    is_array: bool = False,
    engine: Engine = "auto",
) -> tuple[FlatIndices, FlatIndices]:
    """The positions of foreground and of background, as MONAI's `map_binary_to_indices` has them.

    The background of a uint8 tensor is therefore the whole array unless an image narrows it: MONAI takes the complement
    of the numbers, bit by bit, and none of them becomes 0.

    Args:
        label: (c, *spatial) of two or three spatial axes; a first channel of several is the background's and left out.
        image: (c, *spatial) of the same sides: background counts where a channel of it is above the threshold.
        threshold: of the image.
        is_array: whether MONAI gets an array of these voxels.
        engine: "torch" for plain torch even if compiled loops are available.
    """
    find = functools.partial(_binary_positions, label, image, threshold, is_array=is_array)
    return _find_once(find, label, image, ("binary", threshold, is_array), engine)


def _binary_positions(
    label: torch.Tensor, image: torch.Tensor | None, threshold: float, *, is_array: bool, engine: Engine
) -> tuple[FlatIndices, FlatIndices]:
    label, image = _lifted(label), None if image is None else _lifted(image)
    is_all = label.dtype == torch.uint8 and image is None and not is_array
    label = label[1:] if len(label) > 1 else label
    if engine == "auto" and _is_compiled(label, image):
        background, foreground = _Planes(label, None, image, threshold).positions(2)
    else:
        is_foreground = label.bool().any(0)
        is_background = ~is_foreground if image is None else ~is_foreground & (image > threshold).any(0)
        background, foreground = _of_mask(is_background), _of_mask(is_foreground)
    return foreground, _everywhere(label) if is_all else background


def class_positions(
    label: torch.Tensor, num_classes: int, image: torch.Tensor | None, threshold: float, *, engine: Engine = "auto"
) -> list[FlatIndices]:
    """The positions of each class, as MONAI's `map_classes_to_indices` has them.

    Args:
        label: (c, *spatial) of two or three spatial axes: classes by number in one channel, or a channel for each.
        num_classes: where the label has one channel.
        image: (c, *spatial) of the same sides: voxels count where a channel of it is above the threshold.
        threshold: of the image.
        engine: "torch" for plain torch even if compiled loops are available.
    """
    find = functools.partial(_class_positions, label, num_classes, image, threshold)
    return _find_once(find, label, image, ("classes", num_classes, threshold), engine)


def _class_positions(
    label: torch.Tensor, num_classes: int, image: torch.Tensor | None, threshold: float, *, engine: Engine
) -> list[FlatIndices]:
    label, image = _lifted(label), None if image is None else _lifted(image)
    if engine == "auto" and len(label) == 1 and num_classes <= _MOST_CLASSES and _is_compiled(label, image):
        return _Planes(label, num_classes, image, threshold).positions(num_classes)
    is_valid = None if image is None else (image > threshold).any(0)
    masks = (channel.bool() for channel in label) if len(label) > 1 else (label[0] == c for c in range(num_classes))
    return [_of_mask(mask if is_valid is None else mask & is_valid) for mask in masks]


def _lifted(value: torch.Tensor) -> torch.Tensor:
    """(c, x, y, z): a plane is one slice, which has its positions in the same order."""
    return value.unsqueeze(1) if value.ndim == 3 else value


def _is_compiled(label: torch.Tensor, image: torch.Tensor | None) -> bool:
    on_cpu = label.device.type == "cpu" and (image is None or image.device.type == "cpu")
    return has_numba() and on_cpu and label.dtype in _LABELS and (image is None or image.dtype in _IMAGES)


class _Planes:
    """Planes of a label, marked by compiled loops."""

    def __init__(
        self, label: torch.Tensor, num_classes: int | None, image: torch.Tensor | None, threshold: float
    ) -> None:
        self._label: Any = (label.view(torch.uint8) if label.dtype == torch.bool else label).numpy()
        self._num_classes = num_classes
        self._image: Any = None if image is None else image.numpy()
        # As torch compares: the threshold takes the type of a floating image.
        is_single = image is not None and image.dtype == torch.float32
        self._threshold = np.float32(threshold) if is_single else np.float64(threshold)

    def positions(self, num_marks: int) -> list[FlatIndices]:
        """The positions of each mark."""
        from voxelocity.monai.lower.crop import numba_positions

        counts = np.empty((self._label.shape[1], num_marks), np.int64)
        marks = np.empty(self._label.shape[2:], np.int16)
        for plane, row in enumerate(counts):
            self._mark(plane, marks)
            numba_positions.count(marks, row)
        return [FlatIndices(counts[:, mark], self._finder(mark)) for mark in range(num_marks)]

    def _finder(self, mark: int) -> Callable[[int, int], int]:
        def find(plane: int, rank: int) -> int:
            marks = np.empty(self._label.shape[2:], np.int16)
            self._mark(plane, marks)
            return plane * marks.size + int(np.flatnonzero(marks == mark)[rank])

        return find

    def _mark(self, plane: int, marks: npt.NDArray[np.int16]) -> None:
        from voxelocity.monai.lower.crop import numba_positions

        if self._num_classes is None:
            numba_positions.mark_binary(self._label[:, plane], marks)
        else:
            numba_positions.mark_classes(self._label[0, plane], self._num_classes, marks)
        if self._image is not None:
            last = 0 if self._num_classes is None else self._num_classes - 1
            numba_positions.leave_out(self._image[:, plane], self._threshold, 0, last, marks)


def _everywhere(label: torch.Tensor) -> FlatIndices:
    num_planes, size = label.shape[1], label[0, 0].numel()
    return FlatIndices(np.full(num_planes, size, np.int64), lambda plane, rank: plane * size + rank)


def _of_mask(mask: torch.Tensor) -> FlatIndices:
    """The positions where a mask (x, y, z) holds; it is copied from a device once, and a bit is kept for each voxel."""
    planes = mask.flatten(1).cpu().numpy()
    bits, size = np.packbits(planes, axis=1), planes.shape[1]

    def find(plane: int, rank: int) -> int:
        return plane * size + int(np.flatnonzero(np.unpackbits(bits[plane], count=size))[rank])

    return FlatIndices(planes.sum(axis=1, dtype=np.int64), find)


_kept: dict[tuple[Any, ...], tuple[list[Any], Any]] = {}
# By what was found and where: the references to the storages, and what was found.
_lock = threading.Lock()


def _find_once(
    find: Callable[..., _Found], label: torch.Tensor, image: torch.Tensor | None, what: Hashable, engine: Engine
) -> _Found:
    """What `find(engine=...)` returns; on a device kept while this memory lives and nothing was written into it.

    Safe to use from several threads, which may find the same at the same time. Tensors without a count of their writes
    (of inference mode) are searched again each time.
    """
    if not on_device.is_far(label.device):
        return find(engine=engine)
    tensors = [label] if image is None else [label, image]
    if any(tensor.is_inference() for tensor in tensors):
        return find(engine="torch")
    # A reference, even a weak one, keeps the address of a storage from being used again.
    refs: list[Any] = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]  # type: ignore[no-untyped-call]
    key = (what, *(_identity(tensor, ref) for tensor, ref in zip(tensors, refs, strict=True)))
    with _lock:
        entry = _kept.get(key)
    if entry is not None:
        known: _Found = entry[1]
        return known
    found = find(engine="torch")
    with _lock:
        # A storage that is gone, or that was written to since.
        for other, (held, _) in list(_kept.items()):
            if _is_older(other, key) or any(ref.expired() for ref in held):
                del _kept[other]
        _kept[key] = (refs, found)
    return found


def _identity(tensor: torch.Tensor, ref: Any) -> tuple[Any, ...]:
    position = (ref.cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (*position, tensor._version)


def _is_older(key: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether they are of the same question and memory, and differ in nothing but the count of writes."""
    return key[0] == other[0] and [part[:-1] for part in key[1:]] == [part[:-1] for part in other[1:]]
