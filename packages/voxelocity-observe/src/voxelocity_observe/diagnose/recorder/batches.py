"""The program's loaders, and how their batches are made: seconds in the data set and in the collate function, in any
process and thread.

A worker process learns which loader it makes batches for through the loader's `worker_init_fn`, which is replaced while
the workers start: it reaches processes that are forked, spawned or come from a fork server alike.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from .hooks import AttributePatches
from .lines import NO_SITE, OWN_CODE, Sites
from .process import Settings
from .writer import Writer

_MAX_BATCH_TIMES = 1000

BeginWorker = Callable[..., None]
"""Called in a worker with (settings as JSON, key of its loader, its number, asked_s=...), to record it from then on."""

_making_for = threading.local()
"""Key of the loader that owns the fetchers made by this thread, and `item_of`, that of the one it fetches for now."""


class Entry:
    """One loader of the program, or one that is made again for each epoch in the same place.

    It does not keep the loader or its iterator alive: workers end when the program releases them.

    Attributes:
        is_iterated: whether the training's thread has asked for a batch, so it is not part of another loader.
        is_opening: whether it was asked for an iterator and has not given a batch since.
        described: fields of the event `loader`.
        place: where it was first met.
    """

    def __init__(self, key: int, loader: Any, place: str, *, works_ahead: bool, sites: Sites) -> None:
        self.key = key
        self.place = place
        self.works_ahead = works_ahead or _num_workers(loader) > 0
        self.is_opening = False
        self.is_iterated = False
        self.num_epochs = 0
        self.where = ""
        self.described = _describe(loader, sites)
        self._loader = _reference(loader)
        self._iterator: Callable[[], Any] = _nothing

    @property
    def loader(self) -> Any:
        """The loader, None where it is gone."""
        return self._loader()

    @property
    def iterator(self) -> Any:
        """The iterator that gave the last batch, None where it is gone."""
        return self._iterator()

    @property
    def dataset(self) -> Any:
        """The data set, through the iterator if the loader is gone: the iterator lives as long as the loop."""
        loader = self.loader
        return getattr(self.iterator, "_dataset", None) if loader is None else getattr(loader, "dataset", None)

    @property
    def collate(self) -> Any:
        """The function that puts batches together."""
        loader = self.loader
        return getattr(self.iterator, "_collate_fn", None) if loader is None else getattr(loader, "collate_fn", None)

    @property
    def num_ahead(self) -> int:
        """Batches that may be made before they are asked for, 0 if each is made on request."""
        workers = int(self.described.get("num_workers") or 0)
        return workers * int(self.described.get("prefetch_factor") or 2) if workers else 2 * self.works_ahead

    def give_from(self, iterator: Any) -> None:
        """This iterator now gives its batches."""
        self._iterator = _reference(iterator)

    def replace_loader(self, loader: Any) -> None:
        """Another loader has taken its place."""
        self._loader = _reference(loader)
        self._iterator = _nothing


def making_for(key: int) -> None:
    """Fetchers that this thread makes from now on belong to the loader of this key."""
    _making_for.key = key


def loader_of_item() -> int:
    """Key of the loader for which this thread makes items now, -1 where it makes none."""
    return getattr(_making_for, "item_of", -1)


class Tally:
    """What one process spent on the batches of one loader. Its threads share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_batches = self.num_items = self.batch_bytes = 0
        self.item_s = self.item_cpu_s = self.collate_s = self.collate_cpu_s = 0.0
        self.counted_items, self.counted_s = 0, 0.0
        self.batch_s: deque[float] = deque(maxlen=_MAX_BATCH_TIMES)

    def add(
        self,
        num_items: int,
        spent: tuple[float, float],
        collate: tuple[float, float],
        batch_bytes: int,
        *,
        counts: bool,
    ) -> None:
        """A batch: (seconds, CPU seconds) of all of it, and of its collate function, and whether steps are counted."""
        with self.lock:
            self.num_batches += 1
            self.counted_items += num_items * counts
            self.counted_s += spent[0] * counts
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
                "counted_items": self.counted_items,
                "counted_s": round(self.counted_s, 6),
            }


class Fetches:
    """Times the fetchers of torch's loaders. A batch costs about 3 microseconds.

    Args:
        worker: number of this worker process, -1 in the program itself.
        asked_s: `time.monotonic()` when the program asked for this process.
        is_counting: as in `Moment`.
    """

    def __init__(
        self,
        writer: Writer,
        worker: int = -1,
        *,
        asked_s: float | None = None,
        is_counting: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_counting = is_counting
        self._writer = writer
        self._worker = worker
        self._asked_s = asked_s
        self._starts_s: list[float] = []
        self._tallies: dict[int, Tally] = {}
        self._written: dict[int, int] = {}
        self._patches = AttributePatches()
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
                self._voxelocity_tally, self._voxelocity_key = fetches.tally(key), key
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
        counts = fetches.is_counting()
        before, _making_for.item_of = loader_of_item(), self._voxelocity_key
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        try:
            batch = original(self, possibly_batched_index)
        finally:
            _making_for.item_of = before
        spent = (time.perf_counter() - start_s, time.thread_time() - start_cpu_s)
        num_items = len(possibly_batched_index) if self.auto_collation else 1
        tally.add(num_items, spent, self.collate_fn.spent, size_of(batch), counts=counts)
        return batch

    return fetch


class WorkerInit:
    """The function that a worker calls when it starts; it is pickled for a process that is not forked.

    Args:
        settings: of the recording.
        begin: records a worker; pickled by its name.
        key: of the loader.
        before: the program's own function, which is then called; None for none.
    """

    def __init__(self, settings: Settings, begin: BeginWorker, key: int, before: Callable[[int], Any] | None) -> None:
        self._settings = settings.to_json()
        self._begin = begin
        self._key = key
        self._before = before
        self._pid = os.getpid()
        self._asked_s = time.monotonic()

    def __call__(self, worker_id: int) -> Any:
        if os.getpid() != self._pid:
            self._begin(self._settings, self._key, worker_id, asked_s=self._asked_s)
        making_for(self._key)
        return None if self._before is None else self._before(worker_id)


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _nothing() -> None:
    return None


def _describe(loader: Any, sites: Sites) -> dict[str, Any]:
    """Fields of the event `loader`, as far as the loader has them."""
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    asked = getattr(loader, "_IterableDataset_len_called", None)
    fields: dict[str, Any] = {
        "kind": type(loader).__name__,
        "dataset": "" if dataset is None else type(dataset).__name__,
    }
    site, dataset_site = sites.of(loader), NO_SITE if dataset is None else sites.of(dataset)
    fields.update(built=site.where, call=site.call, variable=site.variable)
    fields.update(dataset_call=dataset_site.call, dataset_variable=dataset_site.variable)
    fields["dataset_built"] = dataset_site.where
    fields["queue_workers"] = _num_workers(dataset) if _is_queue(dataset) else None
    if collate is not None:
        fields["collate"], fields["collate_where"] = OWN_CODE.defined(collate)
    fields["num_workers"] = _num_workers(loader)
    if fields["num_workers"] > 0:
        fields["start_method"] = start_method(loader)
    for name in ("batch_size", "prefetch_factor"):
        value = getattr(loader, name, None)
        fields[name] = value if isinstance(value, int) else None
    if fields["batch_size"] is None:
        # Accelerate and the user's samplers may yield whole batches of indices.
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        fields["batch_size"] = size if isinstance(size, int) else None
    for name in ("pin_memory", "persistent_workers"):
        fields[name] = bool(getattr(loader, name, False))
    try:
        fields["num_batches"] = len(loader)
    except Exception:
        fields["num_batches"] = None
    if hasattr(loader, "_IterableDataset_len_called"):
        # torch warns of a wrong length only if the program has asked for it.
        loader._IterableDataset_len_called = asked
    return fields


def _num_workers(loader: Any) -> int:
    found = getattr(loader, "num_workers", 0)
    return found if isinstance(found, int) else 0


def _is_queue(dataset: Any) -> bool:
    """Whether it is TorchIO's queue of patches, which has its own workers."""
    return any((cls.__module__, cls.__name__) == ("torchio.data.queue", "Queue") for cls in type(dataset).__mro__)


def start_method(loader: Any) -> str:
    """How its workers are started: "fork", "spawn", "forkserver"."""
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    # Asking for the default one would settle it, and the program could not choose another one any more.
    name = getattr(context, "_name", None) or context.get_start_method(allow_none=True)
    return str(name or multiprocessing.get_all_start_methods()[0])


def tensors_in(torch: Any, value: Any, depth: int = 9) -> Iterator[Any]:
    """The tensors in a batch, in lists, tuples and dictionaries down to this depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(torch, inner, depth - 1)


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
