"""Items after the fixed part of their chain, kept in memory: all of them, or some that move over them."""

from __future__ import annotations

import copy
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.managers import ListProxy
from typing import Any

import torch
from monai.data import CacheDataset as MonaiCacheDataset
from monai.data import SmartCacheDataset as MonaiSmartCacheDataset
from monai.transforms import convert_to_contiguous

from voxelocity.data.feed import OrderedPrefetch
from voxelocity.monai.datasets.dataset import Dataset
from voxelocity.monai.items.kept import CopyOnWriteStore
from voxelocity_observe.core.errors import ConfigError, ItemError

_SHOWN = 200
"""How many characters of an item an error shows."""


class CacheDataset(Dataset, MonaiCacheDataset):  # type: ignore[misc]
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
        MonaiCacheDataset.set_data(self, data)

    def _load_cache_item(self, idx: int) -> Any:
        item = self._data_chain().fixed(self.data[idx])
        if self.as_contiguous:
            item = convert_to_contiguous(item, memory_format=torch.contiguous_format)
        # A shared list of another kind sends its items to its process by pickle.
        kind = self.runtime_cache
        is_own = kind in (False, None, True) or (isinstance(kind, str) and "thread" in kind)
        return self._keeper.keep(item) if is_own else item

    def defer(self, index: int) -> Any:
        """As `Dataset.defer`, from the cache if the item is there."""
        place = self._place_in_cache(index)
        if place is None:
            return super().defer(index)
        item = self._cache[place]
        if item is None:
            item = self._cache[place] = self._load_cache_item(index)
        return self._data_chain().defer(item, private=self._private)

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


class SmartCacheDataset(CacheDataset, MonaiSmartCacheDataset):  # type: ignore[misc]
    """MONAI's `SmartCacheDataset`, with MONAI's arguments.

    Of five items, with `cache_num=4` and `replace_rate=0.25`, the epochs hold 1234, 2345, 3451, ... Call `start()`
    once, `update_cache()` between epochs, `shutdown()` at the end. While an epoch trains, threads prepare the items
    that the next one needs; they end when these are ready, and nothing polls.

    If an item cannot be prepared, `update_cache()` raises an error that names it; the next call tries again. After
    `shutdown()`, `start()` continues from the current cache.

    Raises:
        ConfigError: `replace_rate` is not above 0, or `runtime_cache` is not False.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None,
        replace_rate: float = 0.1,
        cache_num: int = sys.maxsize,
        cache_rate: float = 1.0,
        num_init_workers: int | None = 1,
        num_replace_workers: int | None = 1,
        progress: bool = True,
        shuffle: bool = True,
        seed: int = 0,
        copy_cache: bool = True,
        as_contiguous: bool = True,
        runtime_cache: bool | str | list[Any] = False,
    ) -> None:
        if runtime_cache is not False:
            raise ConfigError(
                f"monai.SmartCacheDataset: runtime_cache = {runtime_cache!r} is not possible: the epochs decide what "
                "is cached, not the use; leave it False, or use CacheDataset"
            )
        if replace_rate <= 0:
            raise ConfigError(
                f"monai.SmartCacheDataset: replace_rate = {replace_rate} would never replace an item; give a number "
                "above 0, or use CacheDataset"
            )
        if shuffle:
            self.set_random_state(seed=seed)
        self.shuffle = shuffle
        self.replace_rate = replace_rate
        self.num_replace_workers = None if num_replace_workers is None else max(int(num_replace_workers), 1)
        self._update_lock = threading.RLock()
        self._work: OrderedPrefetch[Any] | None = None
        self._is_started = False
        MonaiCacheDataset.__init__(
            self,
            data=data,
            transform=transform,
            cache_num=cache_num,
            cache_rate=cache_rate,
            num_workers=num_init_workers,
            progress=progress,
            copy_cache=copy_cache,
            as_contiguous=as_contiguous,
        )
        if self.cache_num >= len(data):
            warnings.warn(
                f"SmartCacheDataset: the cache holds all {len(data)} items, so no item is replaced, as in CacheDataset",
                stacklevel=2,
            )

    def set_data(self, data: Sequence[Any]) -> None:
        """Takes other items, of any number, and prepares the first cache of them. Call `shutdown()` before."""
        if self.is_started():
            warnings.warn("SmartCacheDataset: set_data before shutdown; it is shut down now", stacklevel=2)
            self.shutdown()
        if self.shuffle:
            # Numpy shuffles in place, and the caller's list must not change.
            data = copy.copy(data)
            self.randomize(data)
        super().set_data(data)
        self._total_num = len(self.data)
        self._start_pos = 0
        self._replace_num = min(math.ceil(self.cache_num * self.replace_rate), self._total_num - self.cache_num)
        self._ready: list[Any] = []

    def is_started(self) -> bool:
        """Whether replacements are being prepared, between `start()` and `shutdown()`."""
        return self._is_started

    def start(self) -> None:
        """Starts threads that prepare the items that the next epoch needs."""
        with self._update_lock:
            if not self._is_started:
                self._is_started = True
                self._begin_round()

    def update_cache(self) -> None:
        """Replaces the oldest items by the prepared ones; waits for those that are not ready. Starts if necessary.

        Raises:
            ItemError: an item could not be prepared. The cache is unchanged, and the next call tries again.
        """
        with self._update_lock:
            self.start()
            replacements = self._replacements
            del self._cache[: self._replace_num]
            self._cache.extend(replacements)
            self._start_pos = (self._start_pos + self._replace_num) % max(self._total_num, 1)
            self._begin_round()

    def shutdown(self) -> None:
        """Ends the preparation of replacements; returns when items in progress are finished."""
        with self._update_lock:
            self._is_started = False
            self._end_work()
            self._ready = []

    def manage_replacement(self) -> None:
        """MONAI's endless loop of its replacing thread; there is no such thread here.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("monai.SmartCacheDataset: manage_replacement is not used here; call start()")

    def __len__(self) -> int:
        return int(self.cache_num)

    @property
    def _replacements(self) -> list[Any]:
        """The items that the next epoch adds; waits for them."""
        with self._update_lock:
            if self._work is None and len(self._ready) < self._replace_num:
                self._begin_round()
            try:
                while self._work is not None and len(self._ready) < self._replace_num:
                    self._ready.append(next(self._work))
            except BaseException:
                self._end_work()
                self._ready = []
                raise
            return self._ready

    def _begin_round(self) -> None:
        self._end_work()
        self._ready = []
        if self._replace_num > 0:
            workers = self.num_replace_workers or os.cpu_count() or 1
            self._work = OrderedPrefetch(
                self._replacement, stop=self._replace_num, num_threads=workers, num_ahead=self._replace_num
            )

    def _end_work(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None

    def _replacement(self, number: int) -> Any:
        place = (self._start_pos + self.cache_num + number) % self._total_num
        try:
            return self._load_cache_item(place)
        except Exception as error:
            shown = repr(self.data[place])
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise ItemError(
                f"monai.SmartCacheDataset: item {place} ({shown}) could not be prepared for the next epoch ({error}); "
                "repair it and call update_cache() again, or leave it out"
            ) from error
