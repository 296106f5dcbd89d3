"""Where the training thread waits for batches: torch's `DataLoader`, and the loaders of `known`.

Time within the outermost loader's `next` is waiting, whatever happens in it. Loaders within loaders are ignored.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from threading import get_ident
from typing import Any, Callable

from .fetches import making_for
from .known import KNOWN_LOADERS, KnownLoader
from .ledger import Ledger
from .lines import OWN_CODE
from .patches import Patches
from .sites import NO_SITE, Sites
from .steps import Steps
from .workers import WorkerStart
from .writer import Writer


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

    def used(self, iterator: Any) -> None:
        """This iterator now gives its batches."""
        self._iterator = _reference(iterator)

    def made_anew(self, loader: Any) -> None:
        """Another loader has taken its place."""
        self._loader = _reference(loader)
        self._iterator = _nothing


class Loaders:
    """Hooks loaders and reports them.

    Attributes:
        replay: asked for each batch before the loader is, with its entry; returns (batch,) to be used instead of the
            loader's next one, or None.
        replay_at_end: asked when the loader has no further batch; returns (batch,) to be used so that the epoch
            continues, or None.
        keep: given each batch of a loader after the loader gave it.
        before_fetch: called before each batch is asked for; it may raise to end the program.
    """

    def __init__(
        self, ledger: Ledger, steps: Steps, writer: Writer, worker_start: WorkerStart, sites: Sites | None = None
    ) -> None:
        self.replay: Callable[[Entry], tuple[Any] | None] = lambda entry: None
        self.replay_at_end: Callable[[Entry], tuple[Any] | None] = lambda entry: None
        self.keep: Callable[[Entry, Any], None] = lambda entry, batch: None
        self.before_fetch: Callable[[], None] = lambda: None
        self.entries: list[Entry] = []
        self._ledger = ledger
        self._steps = steps
        self._writer = writer
        self._worker_start = worker_start
        self._sites = sites or Sites()
        self._patches = Patches()
        self._by_loader: dict[int, Entry] = {}
        self._written: dict[int, tuple[int, bool]] = {}
        self._outer: Entry | None = None

    def hook_torch(self, module: Any) -> None:
        """Replaces the methods in which `torch.utils.data.dataloader` waits."""
        base, many = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
        self._patches.put(base, "__init__", self._iterator_init(base.__init__))
        self._patches.put(base, "__next__", self._next(base.__next__, _entry_of_iterator))
        self._patches.put(many, "__init__", self._worker_init(many.__init__))
        self._patches.put(many, "_shutdown_workers", self._worker_end(many._shutdown_workers))
        self._patches.put(module.DataLoader, "__iter__", self._iter(module.DataLoader.__iter__, self._entry_of_torch))

    def hook_known(self, known: KnownLoader, module: Any) -> None:
        """Replaces the method in which a known loader waits."""
        cls = getattr(module, known.name, None)
        if cls is None:
            return
        entry_of = partial(self._entry_of, works_ahead=known.works_ahead)
        if known.how == "next":
            self._patches.put(cls, "__next__", self._next(cls.__next__, entry_of))
        else:
            self._patches.put(cls, "__iter__", self._iter(cls.__iter__, entry_of, is_wrapped=True))

    def unhook(self) -> None:
        """Puts everything back."""
        self._patches.restore()

    def write(self) -> None:
        """Event `loader` for each loader with news."""
        for entry in list(self.entries):
            state = (entry.num_epochs, entry.key in self._steps.training_keys)
            # One that was only iterated within another loader is part of that one.
            if entry.is_iterated and state != self._written.get(entry.key):
                self._written[entry.key] = state
                fields = {**entry.described, "num_epochs": state[0], "is_for_training": state[1], "where": entry.where}
                self._writer.write("loader", key=entry.key, **fields)

    def generators(self) -> list[Any]:
        """Random number generators given to the loaders and their samplers."""
        loaders = [entry.loader for entry in self.entries]
        samplers = [getattr(one, "sampler", None) for one in loaders]
        inner = [getattr(getattr(one, "batch_sampler", None), "sampler", None) for one in loaders]
        found = [getattr(one, "generator", None) for one in (*loaders, *samplers, *inner)]
        return list({id(one): one for one in found if one is not None}.values())

    def fetch(self, entry: Entry, produce: Callable[[], Any]) -> Any:
        """A batch, with the waiting for it recorded. Called in the training thread, outside of any part."""
        self._steps.settle()
        self.before_fetch()
        self._outer = entry
        ledger = self._ledger
        is_first = entry.is_opening and entry.works_ahead
        kept = self.replay(entry)
        stretch = ledger.cut("first" if is_first else "fetch", key=entry.key, part="wait")
        if not entry.is_iterated:
            entry.is_iterated, entry.where = True, OWN_CODE.where()
        if entry.key in self._steps.training_keys:
            ledger.mode = ""
        mode = ledger.mode
        if is_first:
            ledger.mode = mode or "epoch start"
        ledger.depth = 1
        try:
            batch = produce() if kept is None else kept[0]
        except StopIteration:
            kept = self.replay_at_end(entry)
            if kept is None:
                raise
            batch = kept[0]
        finally:
            ledger.mode = mode
            ledger.end()
        stretch.has_batch = True
        if is_first:
            ledger.cut("batch")
        entry.is_opening = False
        if kept is None:
            self.keep(entry, batch)
        return batch

    def _next(self, original: Callable[[Any], Any], entry_of: Callable[[Any], Entry]) -> Callable[[Any], Any]:
        ledger = self._ledger

        def hooked_next(self_: Any) -> Any:
            if ledger.depth or get_ident() != ledger.thread:
                return original(self_)
            entry = entry_of(self_)
            entry.used(self_)
            return self.fetch(entry, partial(original, self_))

        return hooked_next

    def _iter(
        self, original: Callable[[Any], Any], entry_of: Callable[[Any], Entry], *, is_wrapped: bool = False
    ) -> Callable[[Any], Any]:
        ledger = self._ledger

        def hooked_iter(self_: Any) -> Any:
            if ledger.depth or get_ident() != ledger.thread:
                return original(self_)
            entry = self._outer = entry_of(self_)
            self._steps.settle()
            ledger.cut("iter", key=entry.key, where=OWN_CODE.where())
            mode, ledger.depth = ledger.mode, 1
            ledger.mode = mode or "epoch start"
            try:
                iterator = original(self_)
            finally:
                ledger.depth, ledger.mode = 0, mode
                ledger.cut("ready")
            entry.is_opening = True
            entry.num_epochs += 1
            if not entry.is_iterated:
                entry.is_iterated, entry.where = True, OWN_CODE.where()
            handed_on = _Batches(iterator, entry, self, ledger) if is_wrapped else iterator
            entry.used(handed_on)
            return handed_on

        return hooked_iter

    def _iterator_init(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def hooked_init(self_: Any, loader: Any) -> None:
            entry = self._owner_of(loader)
            self_._voxelocity_entry = entry
            making_for(entry.key)
            original(self_, loader)

        return hooked_init

    def _worker_init(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def hooked_init(self_: Any, loader: Any) -> None:
            entry = self._owner_of(loader)
            before = loader.worker_init_fn
            # Workers start within; each learns which loader it works for, however it is started.
            loader.worker_init_fn = self._worker_start.for_loader(entry.key, before)
            self._worker_start.is_starting = True
            try:
                original(self_, loader)
            finally:
                self._worker_start.is_starting = False
                loader.worker_init_fn = before

        return hooked_init

    def _worker_end(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        """Workers of an epoch that was left early end when the program releases their iterator: part of starting the
        next epoch. The garbage collector may call it too, so nothing may be raised here."""
        ledger = self._ledger

        def hooked_end(self_: Any) -> None:
            entry = getattr(self_, "_voxelocity_entry", None)
            is_within = ledger.depth or get_ident() != ledger.thread or ledger.part != "other"
            if is_within or entry is None or getattr(self_, "_shutdown", True):
                return original(self_)
            ledger.cut("iter", key=entry.key)
            mode, ledger.depth = ledger.mode, 1
            ledger.mode = mode or "epoch start"
            try:
                return original(self_)
            finally:
                ledger.depth, ledger.mode = 0, mode
                if ledger.thread:
                    ledger.cut("ready")

        return hooked_end

    def _entry_of(self, loader: Any, *, works_ahead: bool) -> Entry:
        entry = self._by_loader.get(id(loader))
        if entry is not None and entry.loader is loader:
            return entry
        entry = Entry(len(self.entries), loader, OWN_CODE.where(), works_ahead=works_ahead, sites=self._sites)
        for before in self.entries:
            is_gone = before.loader is None and before.iterator is None
            if is_gone and (before.place, before.described) == (entry.place, entry.described):
                before.made_anew(loader)
                entry = before
                break
        else:
            self.entries.append(entry)
        self._by_loader[id(loader)] = entry
        return entry

    def _owner_of(self, loader: Any) -> Entry:
        """The loader's own entry, or that of the loader within which it is iterated, such as by a buffer's thread."""
        entry = self._by_loader.get(id(loader))
        if entry is not None and entry.loader is loader:
            return entry
        is_within = self._ledger.depth or get_ident() != self._ledger.thread
        return self._outer if is_within and self._outer is not None else self._entry_of_torch(loader)

    def _entry_of_torch(self, loader: Any) -> Entry:
        return self._entry_of(loader, works_ahead=False)


class _Batches:
    """The iterator of a loader whose own iterator cannot be hooked."""

    def __init__(self, iterator: Any, entry: Entry, loaders: Loaders, ledger: Ledger) -> None:
        self._iterator = iterator
        self._entry = entry
        self._loaders = loaders
        self._ledger = ledger

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ledger.depth or get_ident() != self._ledger.thread:
            return next(self._iterator)
        return self._loaders.fetch(self._entry, partial(next, self._iterator))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _entry_of_iterator(iterator: Any) -> Entry:
    entry = iterator._voxelocity_entry
    assert isinstance(entry, Entry)
    return entry


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
    fields: dict[str, Any] = {"kind": type(loader).__name__, "dataset": _class_name(dataset)}
    site, dataset_site = sites.of(loader), NO_SITE if dataset is None else sites.of(dataset)
    fields.update(built=site.where, call=site.call, variable=site.variable)
    fields.update(dataset_call=dataset_site.call, dataset_variable=dataset_site.variable)
    fields["queue_workers"] = _num_workers(dataset) if _is_queue(dataset) else None
    if collate is not None:
        found = OWN_CODE.defined(collate)
        fields.update(collate=found.name, collate_where=found.where, is_own_collate=found.is_own)
    fields["num_workers"] = _num_workers(loader)
    if fields["num_workers"] > 0:
        fields["start_method"] = _start_method(loader)
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
    return fields


def _num_workers(loader: Any) -> int:
    found = getattr(loader, "num_workers", 0)
    return found if isinstance(found, int) else 0


def _is_queue(dataset: Any) -> bool:
    """Whether it is TorchIO's queue of patches, which has its own workers."""
    return any((cls.__module__, cls.__name__) == ("torchio.data.queue", "Queue") for cls in type(dataset).__mro__)


def _class_name(value: Any) -> str:
    return "" if value is None else type(value).__name__


def _start_method(loader: Any) -> str:
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    name = getattr(context, "_name", None)
    return str(name or context.get_start_method())


def hook_known_loaders(loaders: Loaders, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Hooks each known loader when the program imports it."""
    for known in KNOWN_LOADERS:
        when_imported(known.module, partial(loaders.hook_known, known))
