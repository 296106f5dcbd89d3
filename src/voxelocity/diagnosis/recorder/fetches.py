"""How batches are made: seconds in the data set and in the collate function, in any process and thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Callable

from .patches import Patches
from .writer import Writer

_MAX_BATCH_TIMES = 1000

_making_for = threading.local()
"""Key of the loader that owns the fetchers made by this thread."""


def making_for(key: int) -> None:
    """Fetchers that this thread makes from now on belong to the loader of this key."""
    _making_for.key = key


class Tally:
    """What one process spent on the batches of one loader. Its threads share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_batches = self.num_items = self.batch_bytes = 0
        self.item_s = self.item_cpu_s = self.collate_s = self.collate_cpu_s = 0.0
        self.batch_s: deque[float] = deque(maxlen=_MAX_BATCH_TIMES)

    def add(self, num_items: int, spent: tuple[float, float], collate: tuple[float, float], batch_bytes: int) -> None:
        """A batch: (seconds, CPU seconds) of all of it, and those of its collate function."""
        with self.lock:
            self.num_batches += 1
            self.num_items += num_items
            self.item_s += spent[0] - collate[0]
            self.item_cpu_s += spent[1] - collate[1]
            self.collate_s += collate[0]
            self.collate_cpu_s += collate[1]
            self.batch_s.append(spent[0])
            self.batch_bytes = batch_bytes

    def fields(self) -> dict[str, Any]:
        """Fields of the event `fetch`, except key and worker."""
        with self.lock:
            return {
                "num_batches": self.num_batches,
                "num_items": self.num_items,
                "item_s": round(self.item_s, 6),
                "item_cpu_s": round(max(0.0, self.item_cpu_s), 6),
                "collate_s": round(self.collate_s, 6),
                "collate_cpu_s": round(max(0.0, self.collate_cpu_s), 6),
                "batch_s": [round(seconds, 6) for seconds in self.batch_s],
                "batch_bytes": self.batch_bytes,
            }


class Fetches:
    """Times the fetchers of torch's loaders. A batch costs about 3 microseconds.

    Args:
        worker: number of this worker process, -1 in the program itself.
        asked_s: `time.monotonic()` when the program asked for this process.
    """

    def __init__(self, writer: Writer, worker: int = -1, *, asked_s: float | None = None) -> None:
        self._writer = writer
        self._worker = worker
        self._asked_s = asked_s
        self._starts_s: list[float] = []
        self._tallies: dict[int, Tally] = {}
        self._written: dict[int, int] = {}
        self._patches = Patches()
        self.is_on = True

    def hook(self, fetch_module: Any) -> None:
        """Replaces what makes batches in `torch.utils.data._utils.fetch`."""
        base = fetch_module._BaseDatasetFetcher
        original = base.__init__
        fetches = self

        def hooked_init(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:
            key = getattr(_making_for, "key", None)
            if fetches.is_on and key is not None:
                collate_fn = TimedCollate(collate_fn)
                self._voxelocity_tally = fetches.tally(key)
            original(self, dataset, auto_collation, collate_fn, drop_last)

        self._patches.put(base, "__init__", hooked_init)
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(fetch_module, name)
            self._patches.put(cls, "fetch", _timed_fetch(cls.fetch, self))

    def unhook(self) -> None:
        """Restores what was replaced; remaining fetchers no longer time anything."""
        self.is_on = False
        self._patches.restore()

    def tally(self, key: int) -> Tally:
        """The sums of a loader in this process."""
        return self._tallies.setdefault(key, Tally())

    def write(self) -> None:
        """Event `fetch` of each loader that has made batches since the last call."""
        for key, tally in list(self._tallies.items()):
            if tally.num_batches > self._written.get(key, 0):
                self._written[key] = tally.num_batches
                self._writer.write("fetch", key=key, worker=self._worker, starts_s=self._starts_s, **tally.fields())

    def begins(self) -> None:
        """A batch is about to be made. The first one shows how long this process took to start."""
        if self._asked_s is not None:
            self._starts_s.append(round(time.monotonic() - self._asked_s, 6))
            self._asked_s = None


class TimedCollate:
    """A collate function with the seconds of its last call."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.spent = (0.0, 0.0)

    def __call__(self, items: Any) -> Any:
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return self.function(items)
        finally:
            self.spent = (time.perf_counter() - start_s, time.thread_time() - start_cpu_s)


def _timed_fetch(original: Callable[[Any, Any], Any], fetches: Fetches) -> Callable[[Any, Any], Any]:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        tally = getattr(self, "_voxelocity_tally", None)
        if tally is None or not fetches.is_on:
            return original(self, possibly_batched_index)
        fetches.begins()
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        batch = original(self, possibly_batched_index)
        spent = (time.perf_counter() - start_s, time.thread_time() - start_cpu_s)
        num_items = len(possibly_batched_index) if self.auto_collation else 1
        tally.add(num_items, spent, self.collate_fn.spent, size_of(batch))
        return batch

    return fetch


def size_of(batch: Any, depth: int = 0) -> int:
    """Bytes of the tensors and arrays in a batch, in any container, up to eight levels deep."""
    num_bytes = getattr(batch, "nbytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    if depth >= 8:
        return 0
    if isinstance(batch, dict):
        return sum(size_of(value, depth + 1) for value in batch.values())
    if isinstance(batch, (list, tuple)):
        return sum(size_of(value, depth + 1) for value in batch[:64])
    fields = getattr(type(batch), "__dataclass_fields__", None)
    if fields:
        return sum(size_of(getattr(batch, name, None), depth + 1) for name in fields)
    return 0
