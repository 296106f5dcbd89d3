"""Where the training thread waits for batches: torch's `DataLoader`, and the loaders of `KNOWN_LOADERS`.

Time within the outermost loader's `next` is waiting, whatever happens in it. Loaders within loaders are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from threading import get_ident
from typing import Any, Callable, NamedTuple

from .batches import BeginWorker, Entry, WorkerInit, making_for, start_method
from .hooks import AttributePatches, WhenImported
from .lines import OWN_CODE, Sites
from .process import VARIABLE, Settings, absolute
from .steps import Steps
from .timeline import Ledger
from .writer import Writer


class KnownLoader(NamedTuple):
    """A class whose batches are waited for.

    Attributes:
        module: module of the class; hooked when the program imports it.
        name: of the class.
        how: "next" where the class has `__next__` itself, "iter" where its `__iter__` returns an iterator of a kind
            that cannot be hooked (a generator), which is then wrapped in one that can.
        works_ahead: whether batches are made in parallel with the training even without workers, so the first one of
            an epoch comes late.
    """

    module: str
    name: str
    how: str
    works_ahead: bool = True


KNOWN_LOADERS = (
    KnownLoader("monai.data.thread_buffer", "ThreadBuffer", "iter"),
    KnownLoader("monai.data.thread_buffer", "ThreadDataLoader", "iter"),
    KnownLoader("voxelocity.data.pipeline.build", "Feed", "next"),
    KnownLoader("voxelocity.data.feed", "ThreadBuffer", "iter"),
    KnownLoader("voxelocity.monai.datasets.loader", "DataLoader", "iter", works_ahead=False),
    KnownLoader("voxelocity.monai.datasets.buffer", "ThreadDataLoader", "iter"),
    KnownLoader("batchgenerators.dataloading.multi_threaded_augmenter", "MultiThreadedAugmenter", "next"),
    KnownLoader("batchgenerators.dataloading.nondet_multi_threaded_augmenter", "NonDetMultiThreadedAugmenter", "next"),
    KnownLoader(
        "batchgenerators.dataloading.single_threaded_augmenter", "SingleThreadedAugmenter", "next", works_ahead=False
    ),
    KnownLoader("nvidia.dali.plugin.pytorch", "DALIGenericIterator", "next"),
)
"""Besides torch's own `DataLoader`, whose subclasses are all seen."""


class Loaders:
    """Hooks loaders and reports them.

    Args:
        begin_worker: called in each worker process; pickled by its name for one that is not forked.

    Attributes:
        is_starting_workers: whether a loader is starting its workers: a process forked meanwhile is one of them.
        replay: asked for each batch before the loader is, with its entry; returns (batch,) to be used instead of the
            loader's next one, or None.
        replay_at_end: asked when the loader has no further batch; returns (batch,) to be used so that the epoch
            continues, or None.
        keep: given each batch of a loader after the loader gave it.
        before_fetch: called before each batch is asked for; it may raise to end the program.
    """

    def __init__(
        self,
        ledger: Ledger,
        steps: Steps,
        writer: Writer,
        sites: Sites,
        settings: Settings,
        begin_worker: BeginWorker,
    ) -> None:
        self.is_starting_workers = False
        self.replay: Callable[[Entry], tuple[Any] | None] = lambda entry: None
        self.replay_at_end: Callable[[Entry], tuple[Any] | None] = lambda entry: None
        self.keep: Callable[[Entry, Any], None] = lambda entry, batch: None
        self.before_fetch: Callable[[], None] = lambda: None
        self.entries: list[Entry] = []
        self._ledger = ledger
        self._steps = steps
        self._writer = writer
        self._sites = sites
        self._settings = settings
        self._begin_worker = begin_worker
        self._patches = AttributePatches()
        self._by_loader: dict[int, Entry] = {}
        self._written: dict[int, tuple[int, bool]] = {}
        self._outer: Entry | None = None

    def hook_torch(self, module: Any) -> None:
        """Replaces the methods in which `torch.utils.data.dataloader` waits."""
        base, many = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
        self._patches.put(base, "__init__", self._iterator_init(base.__init__))
        self._patches.put(base, "__next__", self._next(base.__next__, attrgetter("_voxelocity_entry")))
        self._patches.put(many, "__init__", self._worker_init(many.__init__))
        self._patches.put(many, "_shutdown_workers", self._worker_end(many._shutdown_workers))
        self._patches.put(module.DataLoader, "__iter__", self._iter(module.DataLoader.__iter__, self._entry_of))

    def hook_known(self, when_imported: WhenImported) -> None:
        """Replaces the methods in which the known loaders wait, once the program imports them."""
        for known in KNOWN_LOADERS:
            when_imported(known.module, partial(self._hook_known, known))

    def _hook_known(self, known: KnownLoader, module: Any) -> None:
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

    def training_entries(self) -> list[Entry]:
        """Those that feed the training."""
        return [entry for entry in self.entries if entry.key in self._steps.training_keys]

    def generators(self) -> list[Any]:
        """Random number generators given to the loaders and their samplers."""
        loaders = [entry.loader for entry in self.entries]
        samplers = [getattr(loader, "sampler", None) for loader in loaders]
        inner = [getattr(getattr(loader, "batch_sampler", None), "sampler", None) for loader in loaders]
        found = [getattr(owner, "generator", None) for owner in (*loaders, *samplers, *inner)]
        return list({id(generator): generator for generator in found if generator is not None}.values())

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
            entry.give_from(self_)
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
            where = OWN_CODE.where()
            with self._opening(entry, where):
                iterator = original(self_)
            entry.is_opening = True
            entry.num_epochs += 1
            if not entry.is_iterated:
                entry.is_iterated, entry.where = True, where
            given = _Batches(iterator, entry, self, ledger) if is_wrapped else iterator
            entry.give_from(given)
            return given

        return hooked_iter

    @contextmanager
    def _opening(self, entry: Entry, where: str = "") -> Iterator[None]:
        """Within the block an epoch of the loader starts."""
        ledger = self._ledger
        ledger.cut("iter", key=entry.key, where=where)
        mode, ledger.depth = ledger.mode, 1
        ledger.mode = mode or "epoch start"
        try:
            yield
        finally:
            ledger.depth, ledger.mode = 0, mode
            if ledger.thread:
                ledger.cut("ready")

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
            # Workers start within; each learns which loader it works for, however it is started. One that is not forked
            # must be able to import the recorder; otherwise it is not recorded.
            if start_method(loader) == "fork" or _is_found_by_children():
                loader.worker_init_fn = WorkerInit(self._settings, self._begin_worker, entry.key, before)
            self.is_starting_workers = True
            try:
                original(self_, loader)
            finally:
                self.is_starting_workers = False
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
            with self._opening(entry):
                return original(self_)

        return hooked_end

    def _entry_of(self, loader: Any, *, works_ahead: bool = False) -> Entry:
        entry = self._by_loader.get(id(loader))
        if entry is not None and entry.loader is loader:
            return entry
        entry = Entry(len(self.entries), loader, OWN_CODE.where(), works_ahead=works_ahead, sites=self._sites)
        for before in self.entries:
            is_gone = before.loader is None and before.iterator is None
            if is_gone and (before.place, before.described) == (entry.place, entry.described):
                before.replace_loader(loader)
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
        return self._outer if is_within and self._outer is not None else self._entry_of(loader)


def _is_found_by_children() -> bool:
    """Whether a Python that is started now finds the recorder; a program may have set PYTHONPATH for its children."""
    if __name__.startswith("voxelocity_observe."):
        return True
    site = os.path.join(os.path.dirname(absolute(__file__)), "site")
    return VARIABLE in os.environ and site in map(absolute, os.environ.get("PYTHONPATH", "").split(os.pathsep))


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
