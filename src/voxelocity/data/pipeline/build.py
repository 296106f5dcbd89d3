"""The feed: turns cases into an endless stream of augmented batches on a device, made by threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import torch

from voxelocity.core.batch import Batch
from voxelocity.core.cases import Cases
from voxelocity.core.device import numbered
from voxelocity.core.errors import DatasetError
from voxelocity.core.laterality import swapped_classes
from voxelocity.data.augment import Effects, filling_device
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.data.pipeline.assemble import Assembler, Take
from voxelocity.data.pipeline.config import DataConfig
from voxelocity.data.pipeline.draws import RankDraws
from voxelocity.data.pipeline.infer_labels import declare_labels
from voxelocity.data.pipeline.prepared import PreparedCases
from voxelocity.data.pipeline.supply import ResidentSupply, RotatingSupply, open_resident_supply


class Feed:
    """An endless stream of augmented batches on a device, the same for any number of threads and any starting step.

    Batch `n` depends only on (seed, n) and the cases. Use it in a `for` loop or as a context manager; `close` stops
    its threads.

    Args:
        cases: the cases to train on (`Cases.training(fold)` leaves out those held out), either `Cases` or
            `PreparedCases` with their own cache. Of `Cases`, those without a label are left out.
        config: of the pipeline.
        seed: of the order, the patches and the augmentation.
        device: where batches end up; "cuda" is the current device of the thread that makes this object.
        start_step: the first batch to give; a resumed run passes the step it had reached.
        rank: of this process among those that train together, from 0, as torchrun's `RANK`.
        world_size: number of these processes. Each makes its share of a batch of `batch_size`, which is the same for
            any number of them; with `data.cache.num_parts` each reads and caches only its own part of the cases.
        progress: the share of the training that is done before a step, 0 to 1, for `data.patch.growth`; called from
            several threads. Without it every patch has the last shape.
        waits_for_loops: whether the first batch waits until Numba has compiled its loops, once per machine. If not,
            plain torch makes the first batches, which differ from those of the loops by rounding: up to 1e-4 in an
            image, and a label in a thousand. Only has an effect with `data.augment.engine: auto` on a CPU.

    Raises:
        DatasetError: there is no case, or one without a label. While batches are made: cases differ in channels.
        ConfigError: the device, the augmentation's engine or one of its `effects` is not available here, its
            `swap_pairs` name an unknown class, there is no such rank, or the batch or the parts of the cache cannot be
            divided among the ranks.
        ScanError: while batches are made, a case cannot be used.

    Attributes:
        wait_s: seconds the consumer has waited for batches.
    """

    def __init__(
        self,
        cases: Cases | PreparedCases,
        config: DataConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[int], float] = lambda step: 1.0,
        waits_for_loops: bool = False,
    ) -> None:
        prepared = cases if isinstance(cases, PreparedCases) else _prepared(cases, config)
        unlabeled = next((ref.case_id for ref in prepared.refs if ref.label is None), None)
        if unlabeled is not None:
            raise DatasetError(f"feed: case '{unlabeled}' has no label to learn from; leave it out")
        self._device = numbered(device)
        self._order = RankDraws(prepared, config, seed=seed, rank=rank, world_size=world_size)
        swapped = swapped_classes(prepared.class_names, config.augment.swap_pairs)
        effects = Effects(config.augment)
        filled_on = filling_device(config.augment.engine, self._device)
        if filled_on.type == "cuda" and not effects.run_on_device:
            filled_on = torch.device("cpu")
            prepared.warn(
                "feed: batches are augmented on the CPU, because an effect of data.augment.effects has no method "
                "apply_on_device(image, label, drawn)"
            )
        self._supply = self._open_supply(prepared, config, start_step=start_step, filled_on=filled_on)
        take: Take = prepared.take if self._supply is None else self._supply.take
        self._assembler = Assembler(
            take,
            config,
            self._order,
            swapped_classes=swapped,
            effects=effects,
            seed=seed,
            device=self._device,
            filled_on=filled_on,
            progress=progress,
            waits_for_loops=waits_for_loops,
        )
        # The threads reference the assembler but not this object, so that a forgotten feed can be collected.
        self._batches = OrderedPrefetch(
            self._assembler,
            start=start_step,
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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


def _prepared(cases: Cases, config: DataConfig) -> PreparedCases:
    declared = declare_labels(cases, num_threads=max(1, config.feed.num_threads))
    return PreparedCases(
        [ref for ref in declared if ref.label is not None],
        label_values=declared.label_values,
        class_names=declared.class_names,
        prepare=config.prepare,
        cache=config.cache,
        warn=lambda text: warnings.warn(text, stacklevel=2),
    )
