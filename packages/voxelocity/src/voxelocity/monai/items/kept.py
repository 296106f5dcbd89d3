"""Items kept in memory, handed out again and again and never changed: arrays are given copy-on-write.

A kept array lies in memory without a file (`memfd`). Handing it out maps it privately: nothing is copied until a
recipient writes, and then only the pages written to, which only that recipient sees.
"""

from __future__ import annotations

import copy
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.data.meta_obj import get_track_meta

_MIN_BYTES = 64 * 1024
"""Smaller arrays are copied: mapping one costs as much as copying this many bytes."""
_SLAB_BYTES = 256 * 2**20
"""Arrays share a slab up to this size, because every slab takes a file descriptor."""
_PAGE = mmap.PAGESIZE


class CopyOnWriteStore:
    """Keeps items and hands out copies that cost only what is touched. Safe to use from several threads.

    Forked processes share the kept arrays; a spawned one gets its items by pickle and copies them whole, as does a
    system without `memfd`.
    """

    # MONAI seeds whatever it finds in the attributes of a data set, and in theirs; it skips what has none.
    __slots__ = ("_current", "_lock", "_slabs")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: list[weakref.ref[_Slab]] = []
        self._current: weakref.ref[_Slab] | None = None

    def keep(self, item: Any) -> Any:
        """The item with its large arrays in the keeper's memory, which lives as long as they do."""
        arrays = [array for array in leaves_of(item) if _is_plain_array(array) and array.nbytes >= _MIN_BYTES]
        if not arrays or not hasattr(os, "memfd_create"):
            return item
        try:
            memo = self._place(arrays)
        except OSError:
            # No descriptor or no address left: the item does not move, and is copied whole when it is handed out.
            return item
        return deep_copy(item, memo)

    def private(self, item: Any) -> Any:
        """A copy of a kept item that the caller may change."""
        memo: dict[int, Any] = {}
        for array in filter(_is_plain_array, leaves_of(item)):
            found = self._place_of(array)
            if found is not None:
                slab, offset = found
                memo[id(array)] = _like(array, slab.private(offset, array.nbytes))
        return deep_copy(item, memo)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        CopyOnWriteStore.__init__(self)

    def _place(self, arrays: list[Any]) -> dict[int, Any]:
        needed = sum(_rounded(array.nbytes) for array in arrays)
        with self._lock:
            slab = self._current() if self._current is not None else None
            if slab is None or slab.num_free < needed:
                slab = _Slab(max(needed, _SLAB_BYTES))
                self._current = weakref.ref(slab)
                self._slabs = [ref for ref in self._slabs if ref() is not None] + [self._current]
            offsets = [slab.take(_rounded(array.nbytes)) for array in arrays]
        memo = {}
        for array, offset in zip(arrays, offsets, strict=True):
            place = slab.shared(offset, array.nbytes)
            place[:] = _bytes_of(array)
            memo[id(array)] = _like(array, place)
        return memo

    def _place_of(self, array: Any) -> tuple[_Slab, int] | None:
        address = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
        for ref in self._slabs:
            slab = ref()
            if slab is not None:
                offset = address - slab.address
                if 0 <= offset < slab.num_bytes and offset % _PAGE == 0:
                    return slab, offset
        return None


class _Slab:
    """A piece of memory without a file, from which arrays are taken one after the other."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._used = 0
        descriptor = os.memfd_create("voxelocity-kept", os.MFD_CLOEXEC)
        try:
            # Pages that are not written to take no memory.
            os.ftruncate(descriptor, num_bytes)
            whole = mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_SHARED)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._whole = np.frombuffer(whole, np.uint8)
        self.address = self._whole.ctypes.data
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def num_free(self) -> int:
        return self.num_bytes - self._used

    def take(self, num_bytes: int) -> int:
        """The offset of this many free bytes."""
        offset = self._used
        self._used += num_bytes
        return offset

    def shared(self, offset: int, num_bytes: int) -> Any:
        """The kept bytes themselves. As long as they are held, so is the slab."""
        return np.asarray(_Held(self, self._whole[offset : offset + num_bytes]))

    def private(self, offset: int, num_bytes: int) -> Any:
        """The bytes, copy-on-write."""
        own = mmap.mmap(self._descriptor, num_bytes, flags=mmap.MAP_PRIVATE, offset=offset)
        return np.frombuffer(own, np.uint8)


class _Held:
    """Bytes that hold their slab: numpy keeps the object that offered an array alive as the array's base."""

    def __init__(self, slab: _Slab, view: Any) -> None:
        self._slab = slab
        self.__array_interface__ = view.__array_interface__


def deep_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that shares nothing with the value.

    `copy.deepcopy` of a MetaTensor shares the arrays in its metadata, and MONAI's transforms write into them.

    Args:
        value: an item of a data set.
        memo: copies of parts of it by their id, as of `copy.deepcopy`.
    """
    memo = {} if memo is None else memo
    # Without tracking, a copy has no metadata.
    for part in leaves_of(value) if get_track_meta() else ():
        if type(part) is MetaTensor and id(part) not in memo:
            made = copy.deepcopy(part.as_subclass(torch.Tensor)).as_subclass(MetaTensor)
            made.__dict__ = copy.deepcopy(part.__dict__)
            memo[id(part)] = made
    return copy.deepcopy(value, memo)


def leaves_of(value: Any) -> list[Any]:
    """What is in nested dictionaries, lists and tuples, each once."""
    found: list[Any] = []
    waiting = [value]
    seen = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        else:
            found.append(part)
    return found


def _is_plain_array(value: Any) -> bool:
    """Whether it is a CPU array in C order; others are copied."""
    if type(value) in (torch.Tensor, MetaTensor):
        return bool(
            value.layout == torch.strided
            and value.device.type == "cpu"
            and value.is_contiguous()
            and not value.requires_grad
            and not value.is_quantized
            and not value.is_conj()
            and not value.is_neg()
        )
    return type(value) is np.ndarray and value.flags.c_contiguous and not value.dtype.hasobject


def _bytes_of(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array.as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8)


def _like(array: Any, place: Any) -> Any:
    """An array over these bytes, of the kind of `array` and with copies of its metadata."""
    if isinstance(array, torch.Tensor):
        plain = torch.from_numpy(place).view(array.dtype).view(array.shape)
        if type(array) is torch.Tensor:
            return plain
        made = plain.as_subclass(type(array))
        made.__dict__ = copy.deepcopy(array.__dict__)
        return made
    return place.view(array.dtype).reshape(array.shape)


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
