"""Batches without end, whatever makes them: their cases, our feed, how a stream is opened and how fast it flows.

Voxelocity's side goes through the calls that a training uses.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.batch import Batch
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases
from voxelocity.data.prepare import PrepareConfig
from voxelocity_lab.bench.comparison import BenchSide
from voxelocity_lab.bench.phantom import Kind, PhantomSet, make_phantoms
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.host import cpu_budget

OpenStream = Callable[[], AbstractContextManager[Iterator[Any]]]
"""Starts an endless stream of batches; leaving the block ends its threads and processes."""
_MANY = 1_000_000
CT_WINDOW_HU = (-1000.0, 1000.0)
AS_MONAI = AugmentConfig.only(
    flip_probability=(0.5, 0.5, 0.5),
    affine_probability=1.0,
    rotation_share=1.0,
    rotation_degrees=(15.0, 15.0, 15.0),
    scale_share=1.0,
    scale_range=(0.9, 1.1),
    noise_probability=1.0,
    noise_std_range=(0.0, 0.1),
    intensity_scale_probability=1.0,
    intensity_scale_range=(0.9, 1.1),
    intensity_shift_probability=1.0,
    intensity_shift_range=(-0.1, 0.1),
)
"""Affine of every patch, three flips, scale, shift and noise: what the peers' chains do."""
AS_NNUNET = AugmentConfig(label_interpolation="vote")
"""nnU-Net's default augmentation; "vote" equals its argmax over interpolated classes."""
NONE = AugmentConfig(enabled=False)
MEMORY = {"tier": "memory", "max_bytes": 2**32}
"""The memory tier as a plan takes it, with room for every case of a scenario."""


@dataclass(frozen=True, kw_only=True)
class BenchCases:
    """Some cases, with all that is needed to prepare them."""

    refs: Sequence[VolumeRef]
    kind: Kind
    num_classes: int
    words: str = ""

    @classmethod
    def of(cls, phantoms: PhantomSet, folder: Path) -> BenchCases:
        """Phantoms that are kept in `folder`."""
        refs = make_phantoms(phantoms, folder)
        return cls(refs=refs, kind=phantoms.kind, num_classes=phantoms.num_classes, words=phantoms.words)

    def open(self, cache: Mapping[str, Any], *, spacing_mm: Any = "keep") -> PreparedCases:
        """The cases behind a cache of these settings; nothing is prepared yet.

        CT is scaled by a fixed window to 0..1, MR to mean 0 and deviation 1 over what is not zero.
        """
        low, high = CT_WINDOW_HU
        intensity = (
            {"mode": "window", "low": low, "high": high}
            if self.kind == "ct"
            else {"mode": "zscore", "nonzero_only": True}
        )
        return PreparedCases(
            self.refs,
            label_values=range(self.num_classes),
            prepare=PrepareConfig.parse({"intensity": intensity, "spacing_mm": spacing_mm}),
            cache=CacheConfig.parse(cache),
            warn=lambda text: warnings.warn(text, stacklevel=2),
        )

    def fill(self, cache: Mapping[str, Any], *, spacing_mm: Any = "keep") -> PreparedCases:
        """The same, all of them in their cache."""
        cases = self.open(cache, spacing_mm=spacing_mm)
        cases.fill(num_threads=cpu_budget(), on_case=lambda case_id, num_bytes: None, should_stop=lambda: False)
        return cases


@contextlib.contextmanager
def feed_of(
    cases: PreparedCases,
    *,
    patch: Index3,
    batch_size: int,
    augment: AugmentConfig,
    num_threads: int | None = None,
    cache: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Iterator[Iterator[Batch]]:
    """Batches of a feed with a thread for each core. Pass it a cache that rotates; it does not need others."""
    config = DataConfig.parse(
        {
            "prepare": PrepareConfig(),
            "cache": {"tier": "none"} if cache is None else cache,
            "patch": {"shape_voxel": patch},
            "batch_size": batch_size,
            "feed": {"num_threads": cpu_budget() if num_threads is None else num_threads},
            "augment": augment,
        }
    )
    with Feed(cases, config, device=device) as feed:
        yield feed


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all sides make batches of.

    Attributes:
        phantoms: in words; `refs` are their files, `cases` the same, prepared and in our memory tier.
        workers: numbers of worker processes to try a peer's loader with.
        device: where batches are augmented and end up.
        place: folder for what a peer keeps in files, new for this work.
    """

    phantoms: PhantomSet
    refs: Sequence[VolumeRef]
    cases: PreparedCases
    patch: Index3
    batch_size: int
    workers: Sequence[int]
    place: Path | None = None
    device: str = "cpu"

    @classmethod
    def of(cls, phantoms: PhantomSet, folder: Path, **options: Any) -> Work:
        """The work on phantoms that are kept in `folder`."""
        cases = BenchCases.of(phantoms, folder)
        return cls(phantoms=phantoms, refs=cases.refs, cases=cases.fill(MEMORY), **options)

    @cached_property
    def volumes(self) -> list[Volume]:
        """The prepared cases, as they are stored."""
        return [self.cases[index].load() for index in range(len(self.cases))]

    def feed(self, augment: AugmentConfig) -> OpenStream:
        """Our batches."""
        return functools.partial(
            feed_of,
            self.cases,
            patch=self.patch,
            batch_size=self.batch_size,
            augment=augment,
            # On a GPU the peers keep their cases there, too.
            cache={"tier": "none", "device_max_bytes": 2**34} if self.device.startswith("cuda") else None,
            device=self.device,
        )

    def feed_side(self, augment: AugmentConfig, num_batches: int, *, per_batch: int = 1) -> BenchSide:
        """Our side of a comparison of rates, `per_batch` being what a batch counts for."""
        stream = self.feed(augment)
        where = "" if self.device == "cpu" else f", {self.device}"
        name = f"Voxelocity Feed ({cpu_budget()} threads{where})"
        return BenchSide(name=name, once=lambda: per_batch * batches_per_s(stream, num_batches))


class RandomBoxes:
    """Boxes anywhere in cases in memory, image (c, x, y, z) float32 and label (1, x, y, z), by torch's random numbers.

    Those are seeded for each worker of a loader; NumPy's are not. A case may be smaller than `shape`, and its box then
    is, too.
    """

    def __init__(
        self,
        volumes: Sequence[Volume],
        shape: Index3,
        *,
        label_dtype: npt.DTypeLike | None = None,
        device: str = "cpu",
    ) -> None:
        self.images = [torch.from_numpy(volume.intensities()).to(device) for volume in volumes]
        labels = (np.array(volume.label, dtype=label_dtype) for volume in volumes)
        self.labels = [torch.from_numpy(label)[None].to(device) for label in labels]
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
        _finish()
        start_s = clock()
        for _ in range(num_batches):
            next(stream)
        _finish()
        return num_batches / (clock() - start_s)


def _finish() -> None:
    """Waits for what was asked of a GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


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
