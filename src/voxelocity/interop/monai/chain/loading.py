"""Batches of a data set whose items are sketched: drawn in order by one thread, made by several, ahead of their use."""

from __future__ import annotations

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


def batches(loader: DataLoader[Any], dataset: SketchedDataset, *, num_threads: int, num_ahead: int) -> Iterator[Any]:
    """The batches of a loader with MONAI's `list_data_collate`, patches made by threads into the batch's own memory.

    Order, random numbers (torch's and those of the transforms) and batches are those of the loader itself with
    `num_workers=0`.

    Args:
        loader: its batches of indices, generator and `pin_memory` hold. It has a `batch_sampler`.
        dataset: the loader's, able to sketch.
        num_threads: that make patches.
        num_ahead: batches begun beyond the one that is given; 0 draws nothing before it is asked for.

    Raises:
        Exception: what went wrong with an item, where its batch would have come.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix="voxelocity-patches") as pool:
        waiting: deque[PendingBatch] = deque()
        try:
            begun = _begun(loader, dataset, pool)
            error: Exception | None = None
            while error is None:
                try:
                    waiting.append(next(begun))
                except StopIteration:
                    break
                except Exception as raised:  # kept until the batches before it are given
                    error = raised
                if len(waiting) > num_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            if error is not None:
                raise error
        finally:
            for batch in waiting:
                batch.cancel()


def _begun(loader: DataLoader[Any], dataset: SketchedDataset, pool: ThreadPoolExecutor) -> Iterator[PendingBatch]:
    """The batches, begun when they are asked for."""
    # A loader of torch's own over the same sampler, so that it draws from torch's generators what the loader draws.
    inner: DataLoader[Any] = DataLoader(
        _Sketches(dataset),
        batch_sampler=loader.batch_sampler,
        generator=loader.generator,
        pin_memory=loader.pin_memory,
        collate_fn=lambda items: start_batch(items, pool, dataset.count_made),
    )
    return iter(inner)


class _Sketches(Dataset[Any]):
    """The data set, giving sketches."""

    def __init__(self, dataset: SketchedDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self._dataset.sketch(index)

    def __len__(self) -> int:
        return len(self._dataset)
