"""Loaders whose waiting the recorder knows how to see: a table, and nothing else.

A loader of another library is added by a line here; its class must do its waiting in the named method.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownLoader(NamedTuple):
    """A class whose batches are waited for.

    Attributes:
        module: it stands in; hooked when the program imports that.
        name: of the class.
        how: "next" where the class has `__next__` itself, "iter" where its `__iter__` returns an iterator of a kind
            that cannot be hooked (a generator), which is then handed on behind one that can.
        works_ahead: whether batches are made beside the training even without workers, so that the first one of an
            epoch comes late.
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
"""Beside torch's own `DataLoader`, whose subclasses are all seen."""
