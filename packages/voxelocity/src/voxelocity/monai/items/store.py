"""Prepared items by key: kept in this process, in a folder, or not at all."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.serialization import DEFAULT_PROTOCOL

from voxelocity.monai.items.files import ABSENT, ItemFiles
from voxelocity.monai.items.plain import NotPlainError, from_plain, to_plain
from voxelocity_observe.core.warn_once import WarnOnce


class ItemStore(Protocol):
    """Where prepared items are kept. An item that is handed out is only read.

    Implementations are safe to use from several threads; a thread waits for an item that another thread is making.
    """

    def get_or_make(self, key: str, make: Callable[[], Any]) -> Any:
        """The item under this key, made now if it is not there."""
        ...


class MemoryItems:
    """Keeps items in the memory of this process.

    Args:
        max_bytes: limit for all tensors and arrays together. Items beyond it are made each time; a warning says so
            once.
        warn: called with the warning; None drops it.
    """

    def __init__(self, *, max_bytes: int, warn: Callable[[str], None] | None) -> None:
        self._max_bytes = max_bytes
        self._warn = WarnOnce(warn)
        self._items: dict[str, Any] = {}
        self._num_bytes = 0
        self._begin_process()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy starts empty: what is kept here may be large, and can be made again.
        return functools.partial(MemoryItems, max_bytes=self._max_bytes, warn=self._warn.warn), ()

    def _begin_process(self) -> None:
        # A lock that a thread holds while its process is forked is never released in the new one.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def get_or_make(self, key: str, make: Callable[[], Any]) -> Any:
        """As `ItemStore.get_or_make`."""
        if self._pid != os.getpid():
            self._begin_process()
        with self._lock:
            if key in self._items:
                return self._items[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            if key in self._items:
                return self._items[key]
            try:
                item = make()
                with self._lock:
                    self._keep(key, item)
            finally:
                self._making.pop(key, None)
            return item

    def _keep(self, key: str, item: Any) -> None:
        num_bytes = bytes_of(item)
        if self._num_bytes + num_bytes > self._max_bytes:
            self._warn(
                "full",
                f"voxelocity.monai: {len(self._items)} prepared items fill the {self._max_bytes / 1e9:.1f} GB that the "
                "cache may take in memory; the others are prepared again each time they are used. Raise "
                "cache_max_bytes, or set cache to a folder",
            )
            return
        self._items[key] = item
        self._num_bytes += num_bytes


class FolderItems:
    """Keeps items in files that later runs and other processes find. Keeps only items of plain data.

    Args:
        folder: created if it is missing.
        warn: called once, with a warning, when an item cannot be kept.

    Raises:
        OutputError: the folder cannot be created, or is not a folder.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None]) -> None:
        self._files = ItemFiles(
            folder,
            weights_only=True,
            pickle_module="pickle",
            pickle_protocol=DEFAULT_PROTOCOL,
            owner="voxelocity.monai.compile",
            argument="cache",
        )
        self._folder = folder
        self._warn = WarnOnce(warn)

    def get_or_make(self, key: str, make: Callable[[], Any]) -> Any:
        """As `ItemStore.get_or_make`. Tensors are mapped from the file: a patch reads what it needs."""
        with self._files.entry(key) as found:
            if found is not ABSENT:
                return from_plain(found)
            item = make()
            try:
                self._files.save(key, to_plain(item))
            except NotPlainError as error:
                self._warn(
                    "not plain",
                    f"voxelocity.monai: prepared items are not kept in {self._folder}, but prepared again each time "
                    f"they are used: {error}. Create such values after the first random transform, or use "
                    "cache='memory'",
                )
        return item


def bytes_of(item: Any) -> int:
    """Bytes of all tensors and arrays in an item."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return int(item.nbytes)
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
    return sum(bytes_of(value) for value in values)
