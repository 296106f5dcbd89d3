"""What was found in a tensor on a device, kept while the tensor lives unchanged: finding it again would wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_Found = TypeVar("_Found")
_kept: dict[tuple[Any, ...], tuple[list[Any], Any]] = {}
# By what was found and where: the references to the storages, and what was found.
_lock = threading.Lock()


def kept(tensors: list[torch.Tensor], what: Hashable, find: Callable[[], _Found]) -> _Found:
    """What `find` returns, kept while these tensors' memory lives and nothing was written into it.

    Safe to use from several threads, which may find the same at the same time.

    Args:
        tensors: all that `find` reads, plain ones.
        what: what else the result depends on.
        find: called if nothing is kept. Tensors without a count of their writes (of inference mode) are searched again
            each time.
    """
    if any(tensor.is_inference() for tensor in tensors):
        return find()
    # A reference, even a weak one, keeps the address of a storage from being used again.
    refs: list[Any] = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]  # type: ignore[no-untyped-call]
    key = (what, *(_identity(tensor, ref) for tensor, ref in zip(tensors, refs, strict=True)))
    with _lock:
        entry = _kept.get(key)
    if entry is not None:
        found: _Found = entry[1]
        return found
    found = find()
    with _lock:
        # A storage that is gone, or that was written to since.
        cdatas = {ref.cdata for ref in refs}
        for other, (held, _) in list(_kept.items()):
            is_older = {ref.cdata for ref in held} == cdatas and other[0] == what and _is_older(other, key)
            if is_older or any(ref.expired() for ref in held):
                del _kept[other]
        _kept[key] = (refs, found)
    return found


def _identity(tensor: torch.Tensor, ref: Any) -> tuple[Any, ...]:
    place = (ref.cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (*place, tensor._version)


def _is_older(one: Any, other: Any) -> bool:
    """Whether they differ in nothing but the count of writes."""
    return all(a[:-1] == b[:-1] for a, b in zip(one[1:], other[1:], strict=True))
