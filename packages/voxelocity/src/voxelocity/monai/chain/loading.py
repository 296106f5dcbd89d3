"""Batches of a data set whose items are deferred: one thread draws them in order, several make them ahead of use.

Items are made directly in their batch's memory; the result equals making and then collating them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor
from monai.data.utils import list_data_collate
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from voxelocity.monai.lower import on_device
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.steps import PatchTask, run

_BARE = "the tensor itself"
"""The key of a chain without dictionaries."""


class PendingItems(Dataset[Any]):
    """The items of a data set, or some of them, drawn but not yet made.

    Args:
        dataset: with `defer(index)`, which draws what `dataset[index]` draws, and `count_made(seconds)`, called by the
            thread that made a sample.
        indices: of the items, as torch's `Subset` has them; None for all.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None) -> None:
        self._dataset = dataset
        self._indices = indices
        self.count_made: Callable[[float], None] = dataset.count_made

    def defer(self, index: int) -> Any:
        """What `finish` makes the item of."""
        return self._dataset.defer(index if self._indices is None else self._indices[index])

    __getitem__ = defer

    def __len__(self) -> int:
        return len(self._dataset if self._indices is None else self._indices)


class Batches:
    """One epoch of batches. Iterated to its end, closed or dropped, it leaves no thread behind.

    Batches on a device are launched on the stream that is current where this is made.

    Args:
        begun: batches, each begun when it is requested.
        pool: where they are made; shut down at the end.
        num_ahead: batches begun beyond the one being returned.
    """

    def __init__(self, begun: Iterator[PendingBatch], pool: ThreadPoolExecutor, *, num_ahead: int) -> None:
        self._streams = on_device.Streams()
        self._begun = begun
        self._pool = pool
        self._num_ahead = num_ahead
        self._waiting: deque[PendingBatch] = deque()
        self._error: Exception | None = None
        self._is_over = False
        self._pid = os.getpid()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: whatever an item raised, in place of its batch. You can still request the next batch, as with
                torch's loader.
        """
        while not self._is_over and self._error is None and len(self._waiting) <= self._num_ahead:
            try:
                with self._streams.current():
                    self._waiting.append(next(self._begun))
            except StopIteration:
                self._is_over = True
            except Exception as error:  # kept until the batches before it are given
                self._error = error
        if self._waiting:
            made = self._waiting.popleft().result()
            # Without batches ahead it is the thread that uses them which asks for them.
            return made if self._num_ahead else self.hand_over(made)
        if self._error is not None:
            failed, self._error = self._error, None
            raise failed
        self.close()
        raise StopIteration

    def hand_over(self, batch: Any) -> Any:
        """The batch, called in the thread that uses it, whose stream may have changed since the loop began."""
        return self._streams.hand_over(batch)

    def close(self) -> None:
        """Ends the epoch: cancels what is not made yet and waits for the threads."""
        self._is_over = True
        if os.getpid() != self._pid:
            # Forked while batches were being made: the threads belong to the other process.
            return
        while self._waiting:
            self._waiting.popleft().cancel()
        self._pool.shutdown()

    def __del__(self) -> None:
        self.close()


def batches(loader: DataLoader[Any], dataset: Any, *, num_threads: int, num_ahead: int) -> Batches:
    """The batches of a loader with MONAI's `list_data_collate`, patches made by threads into the batch's own memory.

    Order, random numbers (torch's and those of the transforms) and batches are those of the loader itself with
    `num_workers=0`.

    Args:
        loader: its index batches, generator and `pin_memory` apply. It has a `batch_sampler`.
        dataset: the loader's, as for `PendingItems`.
        num_threads: threads that make patches.
        num_ahead: batches begun beyond the one being returned; 0 draws nothing before it is requested.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="voxelocity-patches")
    # torch's own loader over the same sampler draws the same numbers from torch's generators, at the same times: a
    # first number now, and the order with the first batch.
    inner: DataLoader[Any] = DataLoader(
        PendingItems(dataset),
        batch_sampler=loader.batch_sampler,
        generator=loader.generator,
        pin_memory=loader.pin_memory,
        collate_fn=lambda items: start_batch(items, pool, dataset.count_made),
    )
    return Batches(iter(inner), pool, num_ahead=num_ahead)


class PendingBatch:
    """A batch whose voxels are being made."""

    def __init__(self, collated: Any, work: Sequence[Future[None]]) -> None:
        self._collated = collated
        self._work = work
        self._is_pinned = False

    def pin_memory(self) -> PendingBatch:
        """Requests page-locking of the finished batch. torch's loader calls this if `pin_memory` is set."""
        self._is_pinned = True
        return self

    def result(self) -> Any:
        """The batch, once it is made.

        Raises:
            Exception: whatever making it raised.
        """
        for future in self._work:
            future.result()
        return pin_memory(self._collated) if self._is_pinned else self._collated  # type: ignore[no-untyped-call]

    def cancel(self) -> None:
        """Cancels what has not begun yet and waits for the rest."""
        for future in self._work:
            if not future.cancel():
                future.exception()


def start_batch(
    items: Sequence[Any], pool: ThreadPoolExecutor, count: Callable[[float], None] = lambda seconds: None
) -> PendingBatch:
    """The batch that `monai.data.list_data_collate` makes of the finished items, begun in the pool's threads.

    Args:
        items: as `Walker.defer` returns them: dictionaries, bare pending tensors, or lists of either.
        pool: where patches are made, one sample per task. Those on a device are launched here, on the current stream.
        count: called with the seconds that a sample took, in the thread that made it.

    Raises:
        RuntimeError: they cannot be collated; the message is MONAI's.
    """
    samples = [sample for item in items for sample in item] if isinstance(items[0], list) else list(items)
    keyed = [sample if isinstance(sample, dict) else {_BARE: sample} for sample in samples]
    names = [name for name in keyed[0] if _is_uniform([sample.get(name) for sample in keyed])]
    if not names:
        return PendingBatch(list_data_collate([finish(item) for item in items]), ())
    memory = {name: _memory([sample[name] for sample in keyed]) for name in names}
    stand_ins = [
        {name: _stand_in(value) if name in memory else finish(value) for name, value in sample.items()}
        for sample in keyed
    ]
    collated = list_data_collate(stand_ins)
    for name, voxels in memory.items():
        collated[name] = _with_metadata(voxels, collated[name])
    pieces = [
        [(name, sample[name].piece(memory[name][number])) for name in names] for number, sample in enumerate(keyed)
    ]
    far = {name for name in names if on_device.is_far(memory[name].device)}
    _launch([piece for sample in pieces for name, piece in sample if name in far], len(keyed), count)
    near = [[piece for name, piece in sample if name not in far] for sample in pieces]
    work = [pool.submit(_run_timed, sample, count) for sample in near if sample]
    return PendingBatch(collated if isinstance(samples[0], dict) else collated[_BARE], work)


def _launch(pieces: Sequence[PatchTask], num_samples: int, count: Callable[[float], None]) -> None:
    """Makes the patches of a batch on a device, all at once and from this thread: launching holds the GIL."""
    if pieces:
        begin = time.perf_counter()
        run(pieces)
        seconds = (time.perf_counter() - begin) / num_samples
        for _ in range(num_samples):
            count(seconds)


def _run_timed(pieces: Sequence[PatchTask], count: Callable[[float], None]) -> None:
    begin = time.perf_counter()
    run(pieces)
    count(time.perf_counter() - begin)


def _is_uniform(values: Sequence[Any]) -> bool:
    """Whether all are pending, of one shape, dtype and device, and fill a tensor of it, as patches of a batch do."""
    first = values[0]
    return isinstance(first, PendingTensor) and all(
        isinstance(value, PendingTensor)
        and value.kept is None
        # Voxels that only move are converted as they are written; intensities are computed in float32 alone.
        and (value.filled_dtype == value.dtype or value.filled_dtype != torch.float32)
        and (value.shape, value.dtype, value.source.device) == (first.shape, first.dtype, first.source.device)
        for value in values
    )


def _memory(tensors: Sequence[PendingTensor]) -> torch.Tensor:
    first = tensors[0]
    return torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=first.source.device)


def _stand_in(pending: PendingTensor) -> torch.Tensor:
    """A tensor without voxels with the metadata of the one to be made, so that MONAI collates it."""
    return pending.with_metadata(
        torch.empty((0,) * len(pending.shape), dtype=pending.dtype, device=pending.source.device)
    )


def _with_metadata(voxels: torch.Tensor, collated: torch.Tensor) -> torch.Tensor:
    if not isinstance(collated, MetaTensor):
        return voxels
    dressed = MetaTensor(voxels)
    dressed.copy_meta_from(collated, copy_attr=False)
    batch: torch.Tensor = dressed
    return batch
