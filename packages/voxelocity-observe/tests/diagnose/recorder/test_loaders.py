"""Loaders: waiting for them, what they are, how their batches are made, and workers of every kind."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from monai.data import ThreadBuffer, ThreadDataLoader
from torch import nn
from torch.utils.data import DataLoader

from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder.batches import size_of, start_method
from voxelocity_observe.diagnose.recorder.loaders import KNOWN_LOADERS
from voxelocity_observe.diagnose.recorder.steps import current_part

Recorded = Callable[..., Facts]


class SlowItems(torch.utils.data.Dataset[Any]):
    """Items that take 5 ms each."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.005)
        return torch.full((4,), float(index)), index % 2


class Stream(torch.utils.data.IterableDataset[Any]):
    """The same items without numbers."""

    def __iter__(self) -> Iterator[Any]:
        items = SlowItems()
        return (items[index] for index in range(8))


def slow_collate(items: list[Any]) -> Any:
    time.sleep(0.010)
    return torch.utils.data.default_collate(items)


@pytest.fixture
def train(learn: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A program of some epochs over a loader."""

    def make(loader: Any, *, epochs: int = 2) -> Callable[[], None]:
        def program() -> None:
            for _ in range(epochs):
                for x, y in loader:
                    learn(x, y)

        return program

    return make


def test_loader_in_the_training_thread_is_waited_for_item_by_item(recorded: Recorded, train: Any) -> None:
    facts = recorded(train(DataLoader(SlowItems(), batch_size=2, collate_fn=slow_collate)))
    assert len(facts.counted) == 7
    assert all(step.parts["wait"] >= 0.020 for step in facts.counted)
    (loader,) = facts.loaders
    assert (loader.kind, loader.dataset, loader.num_workers, loader.num_batches) == ("DataLoader", "SlowItems", 0, 4)
    assert (loader.num_epochs, loader.is_for_training) == (2, True)
    assert loader.collate.endswith("slow_collate")
    assert loader.collate_where == f"{__file__}:{slow_collate.__code__.co_firstlineno}"
    assert loader.where.startswith(f"{__file__}:")
    (fetch,) = facts.fetches
    assert (fetch.worker, fetch.num_batches, fetch.num_items, len(fetch.batch_s)) == (-1, 8, 16, 8)
    assert fetch.item_s >= 16 * 0.005
    assert 8 * 0.010 <= fetch.collate_s < fetch.item_s + 0.04
    assert fetch.item_cpu_s < fetch.item_s / 2
    assert fetch.batch_bytes == 2 * 4 * 4 + 2 * 8
    # Transforms are timed in the counted steps alone, so their items are counted, too.
    assert fetch.counted_items == 2 * len(facts.counted)
    assert 0.0 < fetch.counted_s < fetch.item_s + fetch.collate_s


def test_transforms_are_told_with_the_loader_that_they_make_items_for(recorded: Recorded, train: Any) -> None:
    from monai.transforms import Compose, Identity

    chain = Compose([Identity()])

    class Chained(SlowItems):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return super().__getitem__(chain(index))

    def collate(items: list[Any]) -> Any:
        # In a thread of the data set's own, as where it replaces its items meanwhile.
        thread = threading.Thread(target=chain, args=(0,))
        thread.start()
        thread.join()
        return torch.utils.data.default_collate(items)

    facts = recorded(train(DataLoader(Chained(), batch_size=2, collate_fn=collate)))
    (loader,) = facts.loaders
    calls = {transform.loader: transform.num_calls for transform in facts.transforms}
    (fetch,) = facts.fetches
    assert calls == {loader.key: fetch.counted_items, -1: fetch.counted_items // 2}


def test_iterable_data_sets_are_timed_too(recorded: Recorded, train: Any) -> None:
    (fetch,) = recorded(train(DataLoader(Stream(), batch_size=2))).fetches
    # Each epoch ends with a fetch that finds the stream at its end, and gives no batch.
    assert (fetch.num_batches, fetch.num_items) == (8, 16)


def test_a_wrong_length_that_the_program_never_asked_for_causes_no_warning(recorded: Recorded, train: Any) -> None:
    class Longer(Stream):
        def __len__(self) -> int:
            return 2

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        (loader,) = recorded(train(DataLoader(Longer(), batch_size=2))).loaders
    assert loader.num_batches == 1
    assert not [warning for warning in told if "Length of IterableDataset" in str(warning.message)]


def test_forked_workers_tell_their_own_times_and_begin_as_the_program_asks(recorded: Recorded, train: Any) -> None:
    called = torch.zeros(2).share_memory_()

    def late(worker: int) -> None:
        called[worker] += 1
        time.sleep(0.05)

    loader = DataLoader(SlowItems(), batch_size=2, num_workers=2, worker_init_fn=late, multiprocessing_context="fork")
    facts = recorded(train(loader))
    assert called.tolist() == [2, 2]
    assert loader.worker_init_fn is late
    assert {fetch.worker for fetch in facts.fetches} == {0, 1}
    assert sum(fetch.num_batches for fetch in facts.fetches) == 8
    assert sum(fetch.item_s for fetch in facts.fetches) >= 16 * 0.005
    (told,) = facts.loaders
    assert (told.num_workers, told.start_method, told.prefetch_factor) == (2, "fork", 2)
    starts = [p for p in facts.passes if p.kind == "epoch start"]
    assert len(starts) == 2
    assert all(start.parts["wait"] >= 0.010 for start in starts)
    assert len(facts.steps) == 8
    assert [len(fetch.starts_s) for fetch in facts.fetches] == [2, 2], "one a worker of each epoch"
    for fetch in facts.fetches:
        assert all(start_s >= 0.05 for start_s in fetch.starts_s)
        # The first batch of an epoch is the first worker's.
        assert fetch.worker > 0 or max(fetch.starts_s) < max(start.seconds for start in starts)
    assert 0.0 < facts.workers_cost_s < 4 * 0.5


def test_network_that_runs_in_a_worker_is_no_step_of_the_training(recorded: Recorded, train: Any) -> None:
    class Encoded(SlowItems):
        def __getitem__(self, index: int) -> Any:
            with torch.no_grad():
                nn.Linear(4, 4).eval()(torch.zeros(1, 4))
            return super().__getitem__(index)

    facts = recorded(train(DataLoader(Encoded(), batch_size=2, num_workers=1, multiprocessing_context="fork")))
    assert len(facts.steps) == 8
    assert not [interval for interval in facts.passes if interval.kind == "validation"]
    (fetch,) = facts.fetches
    assert fetch.num_batches == 8


def test_ending_the_workers_of_an_abandoned_epoch_belongs_to_the_start_of_the_next(
    recorded: Recorded, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []
    many = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    shut_down = many._shutdown_workers

    def slow_end(self: Any) -> None:
        if not self._shutdown:
            parts.append(current_part())
            time.sleep(0.2)
        shut_down(self)

    monkeypatch.setattr(many, "_shutdown_workers", slow_end)
    loader = DataLoader(SlowItems(), batch_size=2, num_workers=1, multiprocessing_context="fork")

    def program() -> None:
        for _ in range(4):
            for number, (x, y) in enumerate(loader):
                learn(x, y)
                if number == 1:
                    break

    facts = recorded(program)
    starts = [interval for interval in facts.passes if interval.kind == "epoch start"]
    assert sum(start.seconds for start in starts) > 3 * 0.2
    # The last epoch has no next one.
    assert parts[:3] == ["epoch start"] * 3
    assert many._shutdown_workers is slow_end


def test_stacks_at_the_start_of_an_epoch_are_not_taken_for_the_loop(recorded: Recorded, train: Any) -> None:
    class Batches:
        def __iter__(self) -> Iterator[list[int]]:
            parts.append(current_part())
            return iter([[0, 1], [2, 3]])

    parts: list[str] = []
    recorded(train(DataLoader(SlowItems(), batch_sampler=Batches())))
    assert parts == ["epoch start", "epoch start"]


@pytest.mark.parametrize("use_thread_workers", [False, True])
def test_thread_loader_of_monai_is_waited_for_and_timed(
    recorded: Recorded, train: Any, use_thread_workers: bool
) -> None:
    loader = ThreadDataLoader(
        SlowItems(), batch_size=4, num_workers=int(use_thread_workers), use_thread_workers=use_thread_workers
    )
    facts = recorded(train(loader))
    (told,) = facts.loaders
    assert (told.kind, told.num_epochs, told.is_for_training) == ("ThreadDataLoader", 2, True)
    assert facts.fetches[0].worker == -1
    assert sum(fetch.num_items for fetch in facts.fetches) == 16
    waits = [stretch.parts.get("wait", 0.0) for stretch in (*facts.steps, *facts.passes)]
    assert sum(waits) >= 4 * 0.010


def test_buffer_around_a_loader_is_the_one_that_is_waited_for(recorded: Recorded, train: Any) -> None:
    facts = recorded(train(ThreadBuffer(DataLoader(SlowItems(), batch_size=4))))
    (loader,) = facts.loaders
    assert (loader.kind, loader.is_for_training) == ("ThreadBuffer", True)
    assert [(fetch.key, fetch.num_items) for fetch in facts.fetches] == [(loader.key, 16)]
    assert len(facts.steps) == 4


def test_iterator_of_a_thread_loader_is_as_a_generator_is(recorded: Recorded) -> None:
    def program() -> None:
        batches = iter(ThreadDataLoader(SlowItems(), batch_size=4))
        assert iter(batches) is batches
        assert len(list(batches)) == 2
        batches.close()

    recorded(program)


def test_two_loaders_in_one_loop_both_feed_the_training(recorded: Recorded, learn: Any) -> None:
    a, b = DataLoader(SlowItems(), batch_size=2), DataLoader(SlowItems(), batch_size=1)

    def program() -> None:
        for (x, y), (u, v) in zip(a, b, strict=False):
            learn(torch.cat([x, u]), torch.cat([y, v]))

    facts = recorded(program)
    assert [loader.is_for_training for loader in facts.loaders] == [True, True]
    assert [step.num_images for step in facts.steps] == [3] * 4
    assert all(step.parts["wait"] >= 0.015 for step in facts.counted)


def test_loader_that_is_made_for_each_epoch_is_one_loader(recorded: Recorded, learn: Any) -> None:
    def program() -> None:
        for _ in range(3):
            for (x, y), _ in zip(
                DataLoader(SlowItems(), batch_size=4), DataLoader(SlowItems(), batch_size=4), strict=True
            ):
                learn(x, y)

    assert [(loader.key, loader.num_epochs) for loader in recorded(program).loaders] == [(0, 3), (1, 3)]


def test_workers_end_with_their_epoch_as_they_do_without_the_recorder(recorded: Recorded, learn: Any) -> None:
    loader = DataLoader(SlowItems(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    left: list[int] = []

    def program() -> None:
        for x, y in loader:
            learn(x, y)
        left.append(len(multiprocessing.active_children()))

    recorded(program)
    assert left == [0]


def test_program_without_a_loader_waits_for_nothing(recorded: Recorded, learn: Any) -> None:
    def program() -> None:
        for _ in range(4):
            time.sleep(0.005)
            learn()

    facts = recorded(program)
    assert facts.loaders == ()
    assert all(step.parts["other"] >= 0.005 and "wait" not in step.parts for step in facts.counted)


def test_feed_of_voxelocity_is_among_the_known_loaders_and_has_its_waiting_there() -> None:
    import importlib

    for known in KNOWN_LOADERS:
        if known.module.startswith(("voxelocity.", "monai.")):
            cls = getattr(importlib.import_module(known.module), known.name)
            assert f"__{known.how}__" in vars(cls), known


def test_how_workers_start_is_not_settled_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", None)
    assert start_method(object()) == multiprocessing.get_all_start_methods()[0]
    assert multiprocessing.get_start_method(allow_none=True) is None
    assert start_method(SimpleNamespace(multiprocessing_context=multiprocessing.get_context("spawn"))) == "spawn"


def test_size_of_a_batch_counts_tensors_and_arrays_in_any_container() -> None:
    tensor = torch.zeros(4)
    assert size_of({"a": [tensor, (tensor, tensor.numpy())], "b": "text", "c": 3}) == 48
