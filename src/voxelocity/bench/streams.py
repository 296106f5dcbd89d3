"""Batches without end, whatever makes them: what they are made of, how they are opened, and how fast they flow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.bench import ours
from voxelocity.bench.comparison import Side
from voxelocity.bench.phantom import PhantomSet
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import Clock, cpu_budget, system_clock

OpenStream = Callable[[], AbstractContextManager[Iterator[Any]]]
"""Starts an endless stream of batches; leaving the block ends its threads and processes."""
_MANY = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all sides make batches of.

    Attributes:
        phantoms: in words; `refs` are their files, `cases` the same, prepared and in our memory tier.
        workers: numbers of worker processes to try a peer's loader with.
        place: folder for what a peer keeps in files, new for this work.
    """

    phantoms: PhantomSet
    refs: Sequence[VolumeRef]
    cases: PreparedCases
    patch: Index3
    batch_size: int
    workers: Sequence[int]
    place: Path | None = None

    @classmethod
    def of(cls, phantoms: PhantomSet, folder: Path, **options: Any) -> Work:
        """The work on phantoms that are kept in `folder`."""
        cases = ours.Cases.of(phantoms, folder)
        return cls(phantoms=phantoms, refs=cases.refs, cases=cases.filled(ours.MEMORY), **options)

    @cached_property
    def volumes(self) -> list[Volume]:
        """The prepared cases, as they are stored."""
        return [self.cases[index].load() for index in range(len(self.cases))]

    def feed(self, augment: AugmentConfig) -> OpenStream:
        """Our batches."""
        return functools.partial(
            ours.feed_of, self.cases, patch=self.patch, batch_size=self.batch_size, augment=augment
        )

    def feed_side(self, augment: AugmentConfig, num_batches: int, *, per_batch: int = 1) -> Side:
        """Our side of a comparison of rates, `per_batch` being what a batch counts for."""
        stream = self.feed(augment)
        name = f"Voxelocity Feed ({cpu_budget()} threads)"
        return Side(name=name, once=lambda: per_batch * batches_per_s(stream, num_batches))


class RandomBoxes:
    """Boxes anywhere in cases in memory, image (c, x, y, z) float32 and label (1, x, y, z), by torch's random numbers.

    Those are seeded for each worker of a loader; NumPy's are not. A case may be smaller than `shape`, and its box then
    is, too.
    """

    def __init__(self, volumes: Sequence[Volume], shape: Index3, *, label_dtype: npt.DTypeLike | None = None) -> None:
        self.images = [torch.from_numpy(volume.intensities()) for volume in volumes]
        self.labels = [torch.from_numpy(np.array(volume.label, dtype=label_dtype))[None] for volume in volumes]
        self.shape = shape

    def __len__(self) -> int:
        return len(self.images)

    def cut(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A box of this case: views of its image and its label."""
        sizes = self.images[index].shape[1:]
        starts = [int(torch.randint(max(n - side, 0) + 1, ())) for n, side in zip(sizes, self.shape, strict=True)]
        box = tuple(slice(start, start + side) for start, side in zip(starts, self.shape, strict=True))
        return self.images[index][(slice(None), *box)], self.labels[index][(slice(None), *box)]


def batches_per_s(open_stream: OpenStream, num_batches: int, *, clock: Clock = system_clock) -> float:
    """Rate at which a consumer that does nothing else gets batches. The first is not counted."""
    with open_stream() as stream:
        next(stream)
        start_s = clock()
        for _ in range(num_batches):
            next(stream)
        return num_batches / (clock() - start_s)


def endless(loader: Any, dataset: Any, *, seed: int | None = None, **options: Any) -> OpenStream:
    """One pass of a torch-like loader class that does not end while it is measured, as a real epoch would.

    With a seed, the order of the cases and what the loader seeds are the same each time it is opened.
    """

    def open_stream() -> AbstractContextManager[Iterator[Any]]:
        # The loader seeds the transforms of its data set from its generator.
        order, own = ({} if seed is None else {"generator": torch.Generator().manual_seed(seed)} for _ in range(2))
        sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=_MANY, **order)
        return passes_of(loader(dataset, sampler=sampler, **own, **options))

    return open_stream


@contextlib.contextmanager
def passes_of(loader: Any) -> Iterator[Iterator[Any]]:
    """The batches of a torch-like loader. Its processes and threads end with the block, not some time later."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        end = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
        if end is not None:
            end()


def fastest(candidates: Mapping[str, OpenStream], num_batches: int) -> tuple[str, OpenStream]:
    """The quickest of a peer's settings, tried once each, so that a peer is shown at its best on this machine.

    Returns:
        What was found, in words for the record, and the stream.
    """
    rates = {name: batches_per_s(stream, num_batches) for name, stream in candidates.items()}
    best = max(rates, key=rates.__getitem__)
    others = ", ".join(f"{name}: {rate:.3g}" for name, rate in rates.items() if name != best)
    return f"{best}" + (f" (batches/s when tried: {rates[best]:.3g}; {others})" if others else ""), candidates[best]
