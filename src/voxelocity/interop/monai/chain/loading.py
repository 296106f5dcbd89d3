"""Batches of a data set whose items are sketched: one thread draws them in order, several make them ahead of use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset

from voxelocity.interop.monai.chain.batch import PendingBatch, start_batch


class SketchedDataset(Protocol):
    """A data set that can give an item drawn but not yet made."""

    def sketch(self, index: int) -> Any:
        """What `self[index]` is once `finish` has made it; draws what `self[index]` draws."""
        ...

    def count_made(self, seconds: float) -> None:
        """Records how long one of its samples took to make; called by the thread that made it."""
        ...

    def __len__(self) -> int: ...


class Batches:
    """One epoch of batches. Iterated to its end, closed or dropped, it leaves no thread behind.

    Args:
        begun: batches, each begun when it is requested.
        pool: where they are made; shut down at the end.
        num_ahead: batches begun beyond the one being returned.
    """

    def __init__(self, begun: Iterator[PendingBatch], pool: ThreadPoolExecutor, *, num_ahead: int) -> None:
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
                self._waiting.append(next(self._begun))
            except StopIteration:
                self._is_over = True
            except Exception as error:  # kept until the batches before it are given
                self._error = error
        if self._waiting:
            return self._waiting.popleft().result()
        if self._error is not None:
            failed, self._error = self._error, None
            raise failed
        self.close()
        raise StopIteration

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


def batches(loader: DataLoader[Any], dataset: SketchedDataset, *, num_threads: int, num_ahead: int) -> Batches:
    """The batches of a loader with MONAI's `list_data_collate`, patches made by threads into the batch's own memory.

    Order, random numbers (torch's and those of the transforms) and batches are those of the loader itself with
    `num_workers=0`.

    Args:
        loader: its index batches, generator and `pin_memory` apply. It has a `batch_sampler`.
        dataset: the loader's, able to sketch.
        num_threads: threads that make patches.
        num_ahead: batches begun beyond the one being returned; 0 draws nothing before it is requested.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="voxelocity-patches")
    # torch's own loader over the same sampler draws the same numbers from torch's generators, at the same times: a
    # first number now, and the order with the first batch.
    inner: DataLoader[Any] = DataLoader(
        _Sketches(dataset),
        batch_sampler=loader.batch_sampler,
        generator=loader.generator,
        pin_memory=loader.pin_memory,
        collate_fn=lambda items: start_batch(items, pool, dataset.count_made),
    )
    return Batches(iter(inner), pool, num_ahead=num_ahead)


class _Sketches(Dataset[Any]):
    """The data set, giving sketches."""

    def __init__(self, dataset: SketchedDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self._dataset.sketch(index)

    def __len__(self) -> int:
        return len(self._dataset)
