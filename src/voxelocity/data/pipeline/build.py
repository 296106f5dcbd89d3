"""The path, top to bottom: which patch, from which volume, cut into a batch, to the device, augmented."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import torch

from voxelocity.core.batch import Batch
from voxelocity.core.cases import Cases
from voxelocity.core.errors import DatasetError
from voxelocity.core.region import Region
from voxelocity.core.rng import generator
from voxelocity.data.augment import apply, sample
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.patch import CaseOrder, choose_region, cut
from voxelocity.data.pipeline.config import DataConfig
from voxelocity.data.pipeline.declare import declare_labels
from voxelocity.data.pipeline.prepared import PreparedCases


class Feed:
    """An endless stream of augmented batches on a device, the same for any number of threads and any starting step.

    Batch `n` depends on (seed, n) and the cases alone. Use it in a `for` loop or as a context manager; `close` stops
    its threads.

    Args:
        cases: the cases to learn from (`Cases.training(fold)` leaves out those held out), as opened or with a cache
            of their own. As opened, those without a label are left out.
        config: the path's configuration.
        seed: of the order, the patches and the augmentation.
        device: where batches end up and are augmented.
        start_step: the first batch to give; a resumed run names the step it had reached.

    Raises:
        DatasetError: there is no case, or one without a label. While batches are made: cases differ in channels.
        ScanError: while batches are made, a case cannot be used.

    Attributes:
        wait_s: seconds the consumer has waited for batches to be put together.
        copy_s: seconds it spent on sending them to the device.
        augment_s: seconds it spent on starting (CPU: doing) their augmentation.
    """

    def __init__(
        self,
        cases: Cases | PreparedCases,
        config: DataConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        start_step: int = 0,
    ) -> None:
        prepared = cases if isinstance(cases, PreparedCases) else _prepared(cases, config)
        unlabelled = next((ref.case_id for ref in prepared.refs if ref.label is None), None)
        if unlabelled is not None:
            raise DatasetError(f"feed: case '{unlabelled}' has no label to learn from; leave it out")
        self._config = config
        self._seed = seed
        self._device = torch.device(device)
        self._order = CaseOrder(
            [ref.case_id for ref in prepared.refs],
            seed=seed,
            batch_size=config.batch_size,
            draws_per_case=config.patch.draws_per_case,
        )
        # The threads hold the assembler and not this object, so that a forgotten feed can be collected.
        self._batches = OrderedPrefetch(
            _Assembler(prepared, config, self._order, seed=seed, pinned=self._device.type == "cuda"),
            start=start_step,
            stop=None,
            num_threads=config.feed.num_threads,
            num_ahead=config.feed.num_batches_ahead,
        )
        self.copy_s = 0.0
        self.augment_s = 0.0

    @property
    def wait_s(self) -> float:
        return self._batches.wait_s

    def epoch_of(self, step: int) -> int:
        """The pass over the cases that the first patch of this batch belongs to, from 0."""
        return self._order.epoch_of(step)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        start = time.perf_counter()
        batch = self._to_device(batch)
        copied = time.perf_counter()
        batch = self._augment(batch)
        self.copy_s += copied - start
        self.augment_s += time.perf_counter() - copied
        return batch

    def close(self) -> None:
        """Stops the threads. A batch in work is finished and dropped."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _to_device(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        return batch.with_(
            image=batch.image.to(self._device, non_blocking=True), label=batch.label.to(self._device, non_blocking=True)
        )

    def _augment(self, batch: Batch) -> Batch:
        if not self._config.augment.enabled:
            return batch
        params = sample(
            batch.draws,
            seed=self._seed,
            num_channels=batch.image.shape[1],
            config=self._config.augment,
            spacing_mm=self._spacing_mm(),
        )
        margin = self._config.augment.margin_voxel(self._config.patch.shape_voxel)
        image, label = apply(batch.image, batch.label, params, margin_voxel=margin)
        return batch.with_(image=image, label=label)

    def _spacing_mm(self) -> tuple[float, float, float] | None:
        spacing = self._config.prepare.spacing_mm
        return None if spacing == "keep" else spacing


def _prepared(cases: Cases, config: DataConfig) -> PreparedCases:
    declared = declare_labels(cases, num_threads=max(1, config.feed.num_threads))
    return PreparedCases(
        [ref for ref in declared if ref.label is not None],
        label_values=declared.label_values,
        prepare=config.prepare,
        cache=config.cache,
        warn=lambda text: warnings.warn(text, stacklevel=2),
    )


class _Assembler:
    """Batch by step number, in main memory: the part of the feed that runs in its threads."""

    def __init__(
        self, prepared: PreparedCases, config: DataConfig, order: CaseOrder, *, seed: int, pinned: bool
    ) -> None:
        self._prepared = prepared
        self._config = config
        self._order = order
        self._seed = seed
        self._pinned = pinned

    def __call__(self, step: int) -> Batch:
        draws = self._order.draws(step)
        margin = self._config.augment.margin_voxel(self._config.patch.shape_voxel)
        shape = Region.whole(self._config.patch.shape_voxel).grown(margin).shape
        image: torch.Tensor | None = None
        label = torch.empty((len(draws), *shape), dtype=torch.uint8)
        regions: list[Region] = []
        for row, draw in enumerate(draws):
            volume = self._prepared[draw.case]
            if image is None:
                image = torch.empty((len(draws), volume.image.shape[0], *shape), dtype=torch.float32)
            elif image.shape[1] != volume.image.shape[0]:
                raise DatasetError(
                    f"feed: case '{draw.case_id}' has {volume.image.shape[0]} channel(s), case '{draws[0].case_id}' "
                    f"{image.shape[1]}; give all cases the same channels"
                )
            rng = generator(self._seed, stage="patch", epoch=draw.epoch, case=draw.case, draw=draw.draw)
            region = choose_region(volume.grid.shape, volume.foreground, self._config.patch, rng)
            assert volume.label is not None, "training cases have labels"
            cut(volume.image, region.grown(margin), out=image[row].numpy(), fill=0.0)
            cut(volume.label[np.newaxis], region.grown(margin), out=label[row].numpy()[np.newaxis], fill=0)
            regions.append(region)
        assert image is not None, "a batch holds at least one patch"
        if self._pinned:
            image, label = image.pin_memory(), label.pin_memory()
        return Batch(image=image, label=label, draws=draws, regions=tuple(regions), step=step)
