"""Batches of a data set whose items are sketched: drawn in order by one thread, made by several, ahead of their use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset

from voxelocity.interop.monai.chain.batch import PendingBatch, start_batch


class SketchedDataset(Protocol):
    """A data set that can give an item drawn and not made yet."""

    def sketch(self, index: int) -> Any:
        """What `self[index]` is once `finish` has made it; draws what `self[index]` draws."""
        ...

    def count_made(self, seconds: float) -> None:
        """Told how long it took to make a sample of it, by the thread that made it."""
        ...

    def __len__(self) -> int: ...


class Batches:
    """One epoch of batches. Iterated to its end, closed or dropped, it leaves no thread behind.

    Args:
        begun: batches that are begun when they are asked for.
        pool: where they are made; shut down at the end.
        num_ahead: batches begun beyond the one that is given.
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
            Exception: what went wrong with an item, where its batch would have come. The batch after it may be asked
                for, as with torch's loader.
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
        """Ends the epoch: gives up what is not made yet and waits for the threads."""
        self._is_over = True
        if os.getpid() != self._pid:
            # Forked while they were made: the threads are the other process's.
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
        loader: its batches of indices, generator and `pin_memory` hold. It has a `batch_sampler`.
        dataset: the loader's, able to sketch.
        num_threads: that make patches.
        num_ahead: batches begun beyond the one that is given; 0 draws nothing before it is asked for.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="voxelocity-patches")
    # A loader of torch's own over the same sampler, so that it draws from torch's generators what the loader draws, and
    # when: a first number now, and the order with the first batch.
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
