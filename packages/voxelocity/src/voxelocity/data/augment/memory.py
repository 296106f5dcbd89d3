"""One piece of memory for all arrays that go to a device."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from voxelocity.core.volume import Array

_ALIGN_BYTES = 16


class ArrayLayout(NamedTuple):
    """Where an array will lie.

    Attributes:
        offset_bytes: in the piece of memory, a multiple of 16.
        dtype: NumPy's name, which torch also knows.
        shape: of the array.
        steps: voxels between neighbors along each axis. The array's own order in memory is kept.
    """

    offset_bytes: int
    dtype: str
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def offset(self) -> int:
        """In elements."""
        return self.offset_bytes // _dtype(self.dtype).itemsize


class Staged:
    """Arrays that were copied together.

    Attributes:
        memory: (n,) uint8, all of them.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        # torch's own views cost more than what is looked up here.
        self._views: dict[str, torch.Tensor] = {}

    def of(self, layout: ArrayLayout) -> torch.Tensor:
        """An array, as a view."""
        view = self._views.get(layout.dtype)
        if view is None:
            view = self._views[layout.dtype] = self.memory.view(getattr(torch, layout.dtype))
        return torch.as_strided(view, layout.shape, layout.steps, layout.offset)


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


@functools.lru_cache(maxsize=256)
def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbors along each axis, in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)


class Staging:
    """Collects arrays, without copying them, then copies all of them at once."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, Array]] = []
        self._num_bytes = 0

    def add(self, array: Array, dtype: str = "") -> ArrayLayout:
        """Takes an array, to be stored as `dtype` if one is named; it must not change before `to`."""
        # Names of dtypes are found once: NumPy composes them each time.
        dtype = dtype or _name(array.dtype)
        if array.size == 0:
            # Of many changes, a batch draws none.
            return ArrayLayout(0, dtype, array.shape, (1,) * array.ndim)
        if array.flags.c_contiguous:
            line, steps = array, _steps(array.shape)
        else:
            order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
            line = array.transpose(order)
            of_line = _steps(line.shape)
            steps = tuple(of_line[order.index(axis)] for axis in range(array.ndim))
        stored = _dtype(dtype)
        piece = ArrayLayout(self._num_bytes, dtype, array.shape, steps)
        self._arrays.append((self._num_bytes, line if line.dtype == stored else line.astype(stored)))
        num_bytes = array.size * stored.itemsize
        self._num_bytes += -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        return piece

    def to(self, device: torch.device) -> Staged:
        """All arrays on the device, copied on the current stream; the host does not wait for it."""
        # torch caches page-locked memory and reuses it only after the copy is done.
        memory = torch.empty(self._num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        target = memory.numpy()
        for offset, array in self._arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, target.data, offset), array)
        return Staged(memory.to(device, non_blocking=True))
