"""The feed: turns cases into an endless stream of augmented batches on a device, made by threads.

The path of a batch: choose and augment patches, read their boxes from volumes, fill a batch, copy it to the device.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, Unpack

import torch

from voxelocity.core.batch import Batch, Draw, ImageFormat, label_dtype
from voxelocity.core.cases import Cases
from voxelocity.core.contracts import ResidentVolume, StoredVolume
from voxelocity.core.laterality import swapped_classes
from voxelocity.core.region import Region
from voxelocity.core.rng import generator
from voxelocity.core.volume import Scaling
from voxelocity.data.augment import (
    AugmentParams,
    Effects,
    ResidentSource,
    Source,
    augment,
    chosen_engine,
    filling_device,
    needed_boxes,
    sample,
)
from voxelocity.data.feed import BufferRing, OrderedPrefetch
from voxelocity.data.patch import PatchConfig, choose_region
from voxelocity.data.pipeline.ahead import compile_kernels
from voxelocity.data.pipeline.config import DataConfig
from voxelocity.data.pipeline.draws import RankDraws
from voxelocity.data.pipeline.feed_request import FeedOptions, FeedRequest
from voxelocity.data.pipeline.infer_labels import declare_labels
from voxelocity.data.pipeline.prepared import PreparedCases
from voxelocity.data.pipeline.supply import ResidentSupply, RotatingSupply, open_resident_supply
from voxelocity_observe.core.device import as_current, numbered
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.request import documents
from voxelocity_observe.spans import span

Take = Callable[[int, Sequence[Draw]], Sequence[StoredVolume]]
"""Gives the volumes of a step's draws, in their order. Called from several threads, roughly in the order of steps."""


class Feed:
    """An endless stream of augmented batches on a device, the same for any number of threads and any starting step.

    Batch `n` depends only on (seed, n) and the cases. Use it in a `for` loop or as a context manager; `close` stops
    its threads.

    Args:
        cases: the cases to train on (`Cases.training(fold)` leaves out those held out), either `Cases` or
            `PreparedCases` with their own cache. Of `Cases`, those without a label are left out.
        config: of the pipeline.
        options: the fields of `FeedRequest`.

    Raises:
        DatasetError: there is no case, or one without a label. While batches are made: cases differ in channels.
        ConfigError: the device, the augmentation's engine or one of its `effects` is not available here, its
            `swap_pairs` name an unknown class, there is no such rank, or the batch or the parts of the cache cannot be
            divided among the ranks.
        ScanError: while batches are made, a case cannot be used.

    Attributes:
        wait_s: seconds the consumer has waited for batches.
    """

    @documents(FeedRequest)
    def __init__(
        self,
        cases: Cases | PreparedCases,
        config: DataConfig,
        **options: Unpack[FeedOptions],
    ) -> None:
        request = FeedRequest.of_call(options)
        prepared = cases if isinstance(cases, PreparedCases) else _open_prepared(cases, config)
        unlabeled = next((ref.case_id for ref in prepared.refs if ref.label is None), None)
        if unlabeled is not None:
            raise DatasetError(f"feed: case '{unlabeled}' has no label to learn from; leave it out")
        self._device, self._num_ahead = numbered(request.device), config.feed.num_batches_ahead
        self._order = RankDraws(
            prepared,
            config,
            seed=request.seed,
            rank=request.rank,
            world_size=request.world_size,
            shares=request.shares,
        )
        swapped = swapped_classes(prepared.class_names, config.augment.swap_pairs)
        effects = Effects(config.augment)
        filled_on = filling_device(config.augment.engine, self._device)
        if filled_on.type == "cuda" and not effects.run_on_device:
            filled_on = torch.device("cpu")
            prepared.warn(
                "feed: batches are augmented on the CPU, because an effect of data.augment.effects has no method "
                "apply_on_device(image, label, drawn)"
            )
        self._supply = self._open_supply(prepared, config, start_step=request.start_step, filled_on=filled_on)
        take: Take = prepared.take if self._supply is None else self._supply.take
        self._assembler = _Assembler(
            take=take,
            config=config,
            order=self._order,
            class_names=prepared.class_names,
            label_dtype=label_dtype(prepared.num_indices),
            swapped_classes=swapped,
            effects=effects,
            seed=request.seed,
            device=self._device,
            filled_on=filled_on,
            progress=request.progress,
            image_format=request.image_format,
        )
        # The threads reference the assembler but not this object, so that a forgotten feed can be collected.
        self._batches = OrderedPrefetch(
            self._assembler,
            start=request.start_step,
            stop=None,
            num_threads=config.feed.num_threads,
            num_ahead=config.feed.num_batches_ahead,
        )

    @property
    def wait_s(self) -> float:
        return self._batches.wait_s

    def epoch_of(self, step: int) -> int:
        """The pass over the cases that the first patch of this batch belongs to, from 0."""
        return self._order.epoch_of(step)

    def share_soon(self, step: int, shares: Sequence[int]) -> int:
        """Lets ranks take other numbers of patches from the first step whose batch no thread has begun; that step.

        Args:
            step: of the batch that is taken next, the same on all ranks.
            shares: patches of each rank.
        """
        first = step + self._num_ahead
        self._order.share_from(first, shares)
        return first

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        if self._device.type == "cuda":
            # The batch was made on another stream: its memory must not be reused before this stream is done with it.
            for tensor in (batch.image, batch.label):
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return batch

    def close(self) -> None:
        """Stops the threads. A batch that is being made is finished and dropped."""
        if isinstance(self._supply, RotatingSupply):
            self._supply.close()
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _open_supply(
        self, prepared: PreparedCases, config: DataConfig, *, start_step: int, filled_on: torch.device
    ) -> RotatingSupply | ResidentSupply | None:
        """What gives volumes in place of `prepared`; None where nothing does."""
        if self._order.window is not None:
            return RotatingSupply(
                prepared,
                self._order.window,
                epoch_of=self._order.epoch_of,
                start_step=start_step,
                num_threads=max(1, config.feed.num_threads),
            )
        max_bytes = config.cache.device_max_bytes
        if max_bytes == 0:
            return None
        if filled_on.type != self._device.type:
            prepared.warn(
                "feed: data.cache.device_max_bytes is not used because the augmentation engine fills batches on the "
                f"CPU, not on {self._device}; choose data.augment.engine: auto"
            )
            return None
        return open_resident_supply(prepared, max_bytes, self._device)


def _open_prepared(cases: Cases, config: DataConfig) -> PreparedCases:
    declared = declare_labels(cases, num_threads=max(1, config.feed.num_threads))
    return PreparedCases(
        [ref for ref in declared if ref.label is not None],
        label_values=declared.stored_values,
        class_names=declared.class_names,
        ignored=declared.ignored,
        prepare=config.prepare,
        cache=config.cache,
        warn=lambda text: warnings.warn(text, stacklevel=2),
    )


@dataclass(kw_only=True, eq=False)
class _Assembler:
    """Makes a batch by its step number: the part of the feed that runs in its threads.

    Its spans are batch, for all of it, and in it read, augment and transfer; a case that the cache does not hold adds
    decode and prepare.
    """

    take: Take
    config: DataConfig
    order: RankDraws
    class_names: Sequence[str]
    label_dtype: torch.dtype
    swapped_classes: Sequence[int]
    effects: Effects
    seed: int
    device: torch.device
    filled_on: torch.device
    progress: Callable[[int], float]
    image_format: ImageFormat

    def __post_init__(self) -> None:
        augment, feed = self.config.augment, self.config.feed
        engine = chosen_engine(augment.engine, self.filled_on)
        self._reads_residents = engine == "triton"
        self._buffers = BufferRing(
            max_free=feed.num_batches_ahead + feed.num_threads + 1, pinned=self.device.type == "cuda"
        )
        self._has_effects = augment.enabled and bool(augment.effects)
        self._own = threading.local()
        self._compiled_for: set[tuple[str, int]] = set()

    def __call__(self, step: int) -> Batch:
        # Feed threads start with device 0, where page-locked memory would open a context on a device that may be full.
        with span("batch", color="gold"), as_current(self.device):
            return self._batch(step)

    def _batch(self, step: int) -> Batch:
        draws = self.order.draws(step)
        patch = self.config.patch
        if patch.growth:
            patch = patch.at(self.progress(step))
        volumes = self.take(step, draws)
        num_channels = self._channels_of(volumes, draws)
        self._compile(volumes[0].spec.dtype, num_channels)
        params, regions, sources = self._draw(draws, volumes, patch)
        shapes = (len(draws), num_channels, *patch.shape_voxel), (len(draws), *patch.shape_voxel)
        if self.filled_on.type == "cuda":
            image, label = self._fill_there(draws, sources, regions, params, *shapes)
        else:
            image, label = self._buffers.take(shapes[0], torch.float32), self._buffers.take(shapes[1], self.label_dtype)
            with span("augment", color="teal"):
                augment(sources, regions, params, image, label, engine=self.config.augment.engine)
                if self._has_effects:
                    self.effects.apply(draws, image, label, seed=self.seed)
            image, label = self._on_device(image), self._on_device(label)
        return Batch(image=image, label=label, draws=draws, regions=regions, step=step)

    def _compile(self, dtype: str, num_channels: int) -> None:
        """Compiles the kernels that later batches need while this one, the first, compiles its own."""
        if (dtype, num_channels) not in self._compiled_for:
            self._compiled_for.add((dtype, num_channels))
            compile_kernels(
                self.config,
                num_channels=num_channels,
                dtypes=[dtype],
                class_names=self.class_names,
                device=self.filled_on,
                image_format=self.image_format,
            )

    def _draw(
        self, draws: Sequence[Draw], volumes: Sequence[StoredVolume], patch: PatchConfig
    ) -> tuple[AugmentParams, tuple[Region, ...], list[Source | ResidentSource]]:
        """The augmentation of each patch, its region, and the voxels that it needs."""
        spacing_mm = self.config.prepare.spacing_mm
        params = sample(
            draws,
            seed=self.seed,
            num_channels=volumes[0].spec.num_channels,
            patch_shape=patch.shape_voxel,
            config=self.config.augment,
            spacing_mm=[volume.grid.spacing_mm for volume in volumes] if spacing_mm == "keep" else spacing_mm,
            swapped_classes=self.swapped_classes,
        )
        regions = tuple(self._region(volume, draw, patch) for volume, draw in zip(volumes, draws, strict=True))
        with span("read", color="sienna"):
            boxes = needed_boxes(params, regions, [volume.grid.shape for volume in volumes])
            sources = [self._source(volume, box) for volume, box in zip(volumes, boxes, strict=True)]
        return params, regions, sources

    def _region(self, volume: StoredVolume, draw: Draw, patch: PatchConfig) -> Region:
        rng = generator(self.seed, stage="patch", epoch=draw.epoch, case=draw.case, draw=draw.draw)
        return choose_region(volume.grid.shape, volume.foreground, patch, rng)

    def _channels_of(self, volumes: Sequence[StoredVolume], draws: Sequence[Draw]) -> int:
        first = volumes[0].spec.num_channels
        for volume, draw in zip(volumes, draws, strict=True):
            if volume.spec.num_channels != first:
                raise DatasetError(
                    f"feed: case '{draw.case_id}' has {volume.spec.num_channels} channel(s), case "
                    f"'{draws[0].case_id}' {first}; give all cases the same channels"
                )
        return first

    def _source(self, volume: StoredVolume, box: Region) -> Source | ResidentSource:
        if self._reads_residents and isinstance(volume, ResidentVolume):
            scaling = volume.scaling or (Scaling(),) * volume.spec.num_channels
            return ResidentSource(box=volume.locate(box), start=box.start, scaling=scaling)
        image, label = volume.read(box)
        assert label is not None, "training cases have labels"
        return Source(image=image, label=label, start=box.start, scaling=volume.scaling)

    def _fill_there(
        self,
        draws: Sequence[Draw],
        sources: Sequence[Source | ResidentSource],
        regions: Sequence[Region],
        params: AugmentParams,
        image_shape: tuple[int, ...],
        label_shape: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Image and label, made on the device on a separate stream, finished when this returns."""
        stream = self._stream()
        with torch.cuda.stream(stream), span("augment", color="teal"):
            kind = self.config.given_out(self.image_format, self.filled_on, math.prod(image_shape[1:]))
            image = kind.empty(image_shape, self.device)
            label = torch.empty(label_shape, dtype=self.label_dtype, device=self.device)
            augment(sources, regions, params, image, label, engine=self.config.augment.engine)
            if self._has_effects:
                self.effects.apply(draws, image, label, seed=self.seed)
            stream.synchronize()
        return image, label

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, copied on a separate stream, finished when this returns."""
        if self.device.type != "cuda":
            return tensor.to(self.device)
        stream = self._stream()
        with span("transfer", color="orange"):
            with torch.cuda.stream(stream):
                copied = tensor.to(self.device, non_blocking=True)
            stream.synchronize()
        return copied

    def _stream(self) -> torch.cuda.Stream:
        """This thread's stream."""
        stream: torch.cuda.Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            # First in line: a batch's small kernels would otherwise wait behind the convolutions of a step.
            stream = self._own.stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        return stream
