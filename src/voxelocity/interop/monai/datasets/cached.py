"""Items after the fixed part of their chain, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.managers import ListProxy
from typing import Any

import torch
from monai.transforms import convert_to_contiguous

from voxelocity.interop.monai.datasets import peer
from voxelocity.interop.monai.datasets.plain import Dataset
from voxelocity.interop.monai.items.kept import CopyOnWriteStore


class CacheDataset(Dataset, peer.CacheDataset):  # type: ignore[misc]
    """MONAI's `CacheDataset`, with MONAI's arguments: the part of the chain before its first random one runs once.

    You never get the kept object itself: its arrays are mapped copy-on-write, so no transform or training script can
    change the cache, even with `copy_cache=False`, and only what is written to is copied. `copy_cache` therefore has
    no effect.

    With `runtime_cache=True` every `DataLoader` worker makes each item again, as with MONAI: use "processes".
    """

    _keeper: CopyOnWriteStore

    def set_data(self, data: Sequence[Any]) -> None:
        """Takes other items and, except with a runtime cache, runs the fixed part of the chain on those to be kept.

        Call it between epochs, with `persistent_workers=False` in the loader.
        """
        self._keeper = CopyOnWriteStore()
        peer.CacheDataset.set_data(self, data)

    def _load_cache_item(self, idx: int) -> Any:
        item = self._data_chain().fixed(self.data[idx])
        if self.as_contiguous:
            item = convert_to_contiguous(item, memory_format=torch.contiguous_format)
        # A shared list of another kind sends its items to its process by pickle.
        is_own = self.runtime_cache in (False, None, True) or self._is_kept_by_threads()
        return self._keeper.keep(item) if is_own else item

    def _is_kept_by_threads(self) -> bool:
        return isinstance(self.runtime_cache, str) and "thread" in self.runtime_cache

    def sketch(self, index: int) -> Any:
        """As `Dataset.sketch`, from the cache if the item is there."""
        place = self._place_in_cache(index)
        if place is None:
            return super().sketch(index)
        item = self._cache[place]
        if item is None:
            item = self._cache[place] = self._load_cache_item(index)
        return self._data_chain().sketch(item, private=self._private)

    def _private(self, item: Any) -> Any:
        # A proxy has just sent a copy.
        return item if isinstance(self._cache, ListProxy) else self._keeper.private(item)

    def _place_in_cache(self, index: int) -> int | None:
        if self.hash_as_key:
            key = self.hash_func(self.data[index])
            return self._hash_keys.index(key) if key in self._hash_keys else None
        # From the front: the cache may be shorter than the data, and -1 is then not its last entry.
        place = range(len(self))[index]
        return place if place < self.cache_num else None
