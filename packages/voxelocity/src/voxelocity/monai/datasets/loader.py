"""MONAI's loader over data sets that can defer: threads make their patches directly in the batch's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monai.data import DataLoader as MonaiDataLoader
from monai.data.utils import list_data_collate
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

from voxelocity.monai.chain.loading import Batches, PendingItems, batches
from voxelocity.monai.datasets.dataset import Dataset
from voxelocity_observe.core.host import cpu_budget


class DataLoader(MonaiDataLoader):  # type: ignore[misc]
    """MONAI's `DataLoader`, with MONAI's arguments and batches.

    If the data set is one of this package's, `num_workers` is 0 and the collation is MONAI's own, threads make the
    patches of a batch in parallel, directly in its memory.
    """

    def __iter__(self) -> Iterator[Any]:
        made = batches_of(self, num_ahead=0)
        return super().__iter__() if made is None else made


def batches_of(loader: TorchDataLoader[Any], *, num_ahead: int) -> Batches | None:
    """One epoch of the loader, its patches made by threads; None if it has to make its batches itself.

    Args:
        loader: any.
        num_ahead: batches begun beyond the one being returned.
    """
    is_plain = loader.num_workers == 0 and loader.batch_sampler is not None and loader.collate_fn is list_data_collate
    dataset = _deferring_dataset(loader.dataset) if is_plain else None
    if dataset is None:
        return None
    return batches(loader, dataset, num_threads=cpu_budget(), num_ahead=num_ahead)


def _deferring_dataset(dataset: Any) -> Any:
    """The data set, or what gives the items of a subset; None if the user's own code makes the items."""
    if type(dataset) is Subset:
        whole = _deferring_dataset(dataset.dataset)
        return None if whole is None else PendingItems(whole, dataset.indices)
    # A derived class may have changed how an item is made.
    is_own = isinstance(dataset, Dataset) and type(dataset).__module__.startswith("voxelocity.")
    return dataset if is_own else None
