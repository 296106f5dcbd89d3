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
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from voxelocity.monai.lower import on_device

_Found = TypeVar("_Found")
_kept: dict[tuple[Any, ...], tuple[list[Any], Any]] = {}
"""By what was found and where: the references to the storages, and what was found."""
_lock = threading.Lock()
# torch compares numbers of 16 bits with a threshold of more.
_NUMPY_COMPARES_ALIKE = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}
)


_FEW_CLASSES = 16
"""Up to this many, looking for each is faster than counting all: 3 of 16 million voxels in 10 to 20 ms, not in 80."""


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
    label: torch.Tensor, image: torch.Tensor | None, threshold: float, *, is_array: bool = False
) -> tuple[FlatIndices, FlatIndices]:
    """The positions of foreground and of background, as MONAI's `map_binary_to_indices` has them.

    The background of a uint8 tensor is therefore the whole array unless an image narrows it: MONAI takes the complement
    of the numbers, bit by bit, and none of them becomes 0.

    Args:
        label: (c, *spatial) of two or three spatial axes; a first channel of several is the background's and left out.
        image: (c, *spatial) of the same sides: background counts where a channel of it is above the threshold.
        threshold: of the image.
        is_array: whether MONAI gets an array of these voxels.
    """
    find = functools.partial(_binary_positions, label, image, threshold, is_array=is_array)
    return _find_once(find, label, image, ("binary", threshold, is_array))


def _binary_positions(
    label: torch.Tensor, image: torch.Tensor | None, threshold: float, *, is_array: bool
) -> tuple[FlatIndices, FlatIndices]:
    voxels, is_valid = _lifted(label), _above(image, threshold)
    is_foreground = _any((voxels[1:] if len(voxels) > 1 else voxels) != 0)
    foreground = _of_mask(is_foreground)
    if label.dtype == torch.uint8 and image is None and not is_array:
        return foreground, _everywhere(is_foreground)
    return foreground, _of_mask(~is_foreground if is_valid is None else ~is_foreground & is_valid)


def class_positions(
    label: torch.Tensor, num_classes: int, image: torch.Tensor | None, threshold: float
) -> list[FlatIndices]:
    """The positions of each class, as MONAI's `map_classes_to_indices` has them.

    Args:
        label: (c, *spatial) of two or three spatial axes: classes by number in one channel, or a channel for each.
        num_classes: where the label has one channel.
        image: (c, *spatial) of the same sides: voxels count where a channel of it is above the threshold.
        threshold: of the image.
    """
    find = functools.partial(_class_positions, label, num_classes, image, threshold)
    return _find_once(find, label, image, ("classes", num_classes, threshold))


def _class_positions(
    label: torch.Tensor, num_classes: int, image: torch.Tensor | None, threshold: float
) -> list[FlatIndices]:
    voxels, is_valid = _lifted(label), _above(image, threshold)
    if len(voxels) == 1 and isinstance(voxels, np.ndarray):
        return _of_numbers(voxels[0], num_classes, is_valid)
    masks = (channel != 0 for channel in voxels) if len(voxels) > 1 else (voxels[0] == c for c in range(num_classes))
    return [_of_mask(_near(mask) if is_valid is None else _near(mask) & is_valid) for mask in masks]


def _lifted(value: torch.Tensor) -> Any:
    """(c, x, y, z), an array if it is near: a plane is one slice, which has its positions in the same order."""
    value = value.unsqueeze(1) if value.ndim == 3 else value
    return value if on_device.is_far(value.device) or value.dtype not in _NUMPY_COMPARES_ALIKE else value.numpy()


def _above(image: torch.Tensor | None, threshold: float) -> Any:
    """(x, y, z): where a channel of the image is above the threshold."""
    return None if image is None else _any(_lifted(image) > threshold)


def _any(masks: Any) -> Any:
    """Where one of the channels holds."""
    return _near(masks[0] if len(masks) == 1 else masks.any(0))


def _near(mask: Any) -> Any:
    """The mask, as an array if it is in main memory."""
    return mask.numpy() if isinstance(mask, torch.Tensor) and mask.device.type == "cpu" else mask


def _of_numbers(label_xyz: npt.NDArray[Any], num_classes: int, is_valid: Any) -> list[FlatIndices]:
    """The positions of each number; planes of the label are read again where a position is asked for."""
    planes = label_xyz.reshape(len(label_xyz), -1)
    size = int(planes.shape[1])
    valid = None if is_valid is None else np.asarray(is_valid).reshape(planes.shape)

    def is_there(number: int, plane: int) -> Any:
        mask = planes[plane] == number
        return mask if valid is None else mask & valid[plane]

    def count(plane: int) -> Any:
        if num_classes <= _FEW_CLASSES:
            return [np.count_nonzero(is_there(number, plane)) for number in range(num_classes)]
        with np.errstate(invalid="ignore"):
            numbers = planes[plane].astype(np.int64)
        is_class = (numbers >= 0) & (numbers < num_classes) & (numbers == planes[plane])
        is_class = is_class if valid is None else is_class & valid[plane]
        # Values that belong to no class are counted before the first class.
        return np.bincount((numbers + 1) * is_class, minlength=num_classes + 1)[1:]

    def find(number: int, plane: int, rank: int) -> int:
        return plane * size + int(np.flatnonzero(is_there(number, plane))[rank])

    counts = np.array([count(plane) for plane in range(len(planes))], np.int64).reshape(len(planes), num_classes)
    return [FlatIndices(counts[:, number], functools.partial(find, number)) for number in range(num_classes)]


def _everywhere(mask_xyz: Any) -> FlatIndices:
    size = mask_xyz[0].size if isinstance(mask_xyz, np.ndarray) else mask_xyz[0].numel()
    return FlatIndices(np.full(len(mask_xyz), size, np.int64), lambda plane, rank: plane * size + rank)


def _of_mask(mask_xyz: Any) -> FlatIndices:
    """The positions where a mask holds; it is copied from a device once, and a bit is kept for each voxel."""
    planes = mask_xyz.reshape(len(mask_xyz), -1)
    planes = planes if isinstance(planes, np.ndarray) else planes.cpu().numpy()
    bits, size = np.packbits(planes, axis=1), int(planes.shape[1])

    def find(plane: int, rank: int) -> int:
        return plane * size + int(np.flatnonzero(np.unpackbits(bits[plane], count=size))[rank])

    return FlatIndices(planes.sum(axis=1, dtype=np.int64), find)


def _find_once(find: Callable[[], _Found], label: torch.Tensor, image: torch.Tensor | None, what: Hashable) -> _Found:
    """What `find` returns; on a device kept while this memory lives and nothing was written into it.

    Safe to use from several threads, which may find the same at the same time. Tensors without a count of their writes
    (of inference mode) are searched again each time.
    """
    if not on_device.is_far(label.device):
        return find()
    tensors = [label] if image is None else [label, image]
    if any(tensor.is_inference() for tensor in tensors):
        return find()
    # A reference, even a weak one, keeps the address of a storage from being used again.
    refs: list[Any] = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]  # type: ignore[no-untyped-call]
    key = (what, *(_identity(tensor, ref) for tensor, ref in zip(tensors, refs, strict=True)))
    with _lock:
        entry = _kept.get(key)
    if entry is not None:
        known: _Found = entry[1]
        return known
    found = find()
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
