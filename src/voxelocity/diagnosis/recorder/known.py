"""A table of the loaders whose waiting the recorder can see.

To support a loader of another library, add a line here; its class must wait in the named method.
"""

from __future__ import annotations

from typing import NamedTuple


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
    KnownLoader("voxelocity.data.feed.ordered", "ThreadBuffer", "iter"),
    KnownLoader("voxelocity.interop.monai.datasets.loader", "DataLoader", "iter", works_ahead=False),
    KnownLoader("voxelocity.interop.monai.datasets.buffer", "ThreadBuffer", "iter"),
    KnownLoader("voxelocity.interop.monai.datasets.buffer", "ThreadDataLoader", "iter"),
    KnownLoader("batchgenerators.dataloading.multi_threaded_augmenter", "MultiThreadedAugmenter", "next"),
    KnownLoader("batchgenerators.dataloading.nondet_multi_threaded_augmenter", "NonDetMultiThreadedAugmenter", "next"),
    KnownLoader(
        "batchgenerators.dataloading.single_threaded_augmenter", "SingleThreadedAugmenter", "next", works_ahead=False
    ),
    KnownLoader("nvidia.dali.plugin.pytorch", "DALIGenericIterator", "next"),
)
"""Besides torch's own `DataLoader`, whose subclasses are all seen."""
