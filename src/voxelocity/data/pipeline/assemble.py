"""The path of a batch: choose and augment patches, read their boxes from volumes, fill a batch, copy to the device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import torch

from voxelocity.core.batch import Batch, Draw
from voxelocity.core.contracts import ResidentVolume, StoredVolume
from voxelocity.core.device import as_current
from voxelocity.core.errors import DatasetError
from voxelocity.core.region import Region
from voxelocity.core.rng import generator
from voxelocity.core.volume import Scaling
from voxelocity.core.waiting import without_waiting
from voxelocity.data.augment import (
    AugmentParams,
    Effects,
    ResidentSource,
    Source,
    augment,
    chosen_engine,
    needed_box,
    sample,
)
from voxelocity.data.feed import BufferRing
from voxelocity.data.patch import PatchConfig, choose_region
from voxelocity.data.pipeline.config import DataConfig
from voxelocity.data.pipeline.draws import RankDraws
from voxelocity.observe import span

Take = Callable[[int, Sequence[Draw]], Sequence[StoredVolume]]
"""Gives the volumes of a step's draws, in their order. Called from several threads, roughly in the order of steps."""


class Assembler:
    """Makes a batch by its step number: the part of the feed that runs in its threads.

    Its spans are collate, the whole batch, and in it read, augment and copy; a case that the cache does not hold adds
    decode and prepare.
    """

    def __init__(
        self,
        take: Take,
        config: DataConfig,
        order: RankDraws,
        *,
        swapped_classes: Sequence[int],
        effects: Effects,
        seed: int,
        device: torch.device,
        filled_on: torch.device,
        progress: Callable[[int], float],
        waits_for_loops: bool,
    ) -> None:
        self._take = take
        self._config = config
        self._progress = progress
        self._order = order
        self._swapped_classes = swapped_classes
        self._effects = effects
        self._seed = seed
        self._device = device
        self._filled_on = filled_on
        engine = chosen_engine(config.augment.engine, filled_on)
        self._reads_residents = engine == "triton"
        self._begins_plain = engine == "numba" and config.augment.engine == "auto" and not waits_for_loops
        self._buffers = BufferRing(
            max_free=config.feed.num_batches_ahead + config.feed.num_threads + 1, pinned=device.type == "cuda"
        )
        self._own = threading.local()

    def __call__(self, step: int) -> Batch:
        # Feed threads start with device 0, where page-locked memory would open a context on a device that may be full.
        with span("batch", color="gold"), as_current(self._device):
            return self._batch(step)

    def _batch(self, step: int) -> Batch:
        draws = self._order.draws(step)
        patch = self._config.patch.at(self._progress(step))
        volumes = self._take(step, draws)
        num_channels = self._channels_of(volumes, draws)
        params, regions, sources = self._drawn(draws, volumes, patch)
        shapes = (len(draws), num_channels, *patch.shape_voxel), (len(draws), *patch.shape_voxel)
        if self._filled_on.type == "cuda":
            image, label = self._filled_there(draws, sources, regions, params, *shapes)
        else:
            image, label = self._buffers.take(shapes[0], torch.float32), self._buffers.take(shapes[1], torch.uint8)

            fill = functools.partial(augment, sources, regions, params, image, label)
            with span("augment", color="teal"):
                if self._begins_plain:
                    without_waiting(fill, lambda: fill(engine="torch"))
                else:
                    fill(engine=self._config.augment.engine)
                self._effects.apply(draws, image, label, seed=self._seed)
            image, label = self._on_device(image), self._on_device(label)
        return Batch(image=image, label=label, draws=draws, regions=regions, step=step)

    def _drawn(
        self, draws: Sequence[Draw], volumes: Sequence[StoredVolume], patch: PatchConfig
    ) -> tuple[AugmentParams, tuple[Region, ...], list[Source | ResidentSource]]:
        """The augmentation of each patch, its region, and the voxels that it needs."""
        params = sample(
            draws,
            seed=self._seed,
            num_channels=volumes[0].spec.num_channels,
            patch_shape=patch.shape_voxel,
            config=self._config.augment,
            spacing_mm=self._spacing_mm(),
            swapped_classes=self._swapped_classes,
        )
        regions = tuple(self._region(volume, draw, patch) for volume, draw in zip(volumes, draws, strict=True))
        with span("read", color="sienna"):
            sources = [
                self._source(volume, needed_box(params, row, region, volume.grid.shape))
                for row, (volume, region) in enumerate(zip(volumes, regions, strict=True))
            ]
        return params, regions, sources

    def _region(self, volume: StoredVolume, draw: Draw, patch: PatchConfig) -> Region:
        rng = generator(self._seed, stage="patch", epoch=draw.epoch, case=draw.case, draw=draw.draw)
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

    def _spacing_mm(self) -> tuple[float, float, float] | None:
        spacing = self._config.prepare.spacing_mm
        return None if spacing == "keep" else spacing

    def _source(self, volume: StoredVolume, box: Region) -> Source | ResidentSource:
        if self._reads_residents and isinstance(volume, ResidentVolume):
            scaling = volume.scaling or (Scaling(),) * volume.spec.num_channels
            return ResidentSource(box=volume.locate(box), start=box.start, scaling=scaling)
        image, label = volume.read(box)
        assert label is not None, "training cases have labels"
        return Source(image=image, label=label, start=box.start, scaling=volume.scaling)

    def _filled_there(
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
            image = torch.empty(image_shape, dtype=torch.float32, device=self._device)
            label = torch.empty(label_shape, dtype=torch.uint8, device=self._device)
            augment(sources, regions, params, image, label, engine=self._config.augment.engine)
            self._effects.apply(draws, image, label, seed=self._seed)
            stream.synchronize()
        return image, label

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, copied on a separate stream, finished when this returns."""
        if self._device.type != "cuda":
            return tensor.to(self._device)
        stream = self._stream()
        with span("transfer", color="orange"):
            with torch.cuda.stream(stream):
                copied = tensor.to(self._device, non_blocking=True)
            stream.synchronize()
        return copied

    def _stream(self) -> torch.cuda.Stream:
        """This thread's stream."""
        stream: torch.cuda.Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return stream
