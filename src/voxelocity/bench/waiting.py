"""The share of a training step spent waiting for data, against the same step on batches at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Figure, Side, compare
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.core.batch import Batch
from voxelocity.core.region import Index3
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import Stopwatch, cpu_budget

# About the size of MSD's hippocampus cases; the patch below holds most of one.
_SMALL_CASES = PhantomSet(kind="ct", shape=(36, 50, 36), num_cases=64)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A small network on a CPU, where the feed's threads and the training share the cores."""

    cases: PhantomSet = _SMALL_CASES
    patch: Index3 = (32, 48, 32)
    batch_size: int = 4
    # The network that `voxelocity plan` chooses for hippocampus on two cores.
    widths: tuple[int, ...] = (8, 32, 64, 128)
    num_steps: int = 12
    repeats: int = 5


def waiting_shares(training: Training, folder: Path) -> Iterator[Comparison]:
    """How much longer a step takes with the feed than on resident batches, and how much of it is plain waiting."""
    refs = make_phantoms(training.cases, folder)
    cases = ours.filled(ours.phantom_cases(refs, training.cases, ours.MEMORY))
    step = _step_of(training)
    with _feed(training, cases) as feed:
        batch = next(feed)
        resident = batch.with_(image=batch.image.clone(), label=batch.label.clone())
    percent: list[float] = []

    def with_feed() -> float:
        with _feed(training, cases) as feed:
            step(next(feed))
            watch, wait_s = Stopwatch(), 0.0
            for _ in range(training.num_steps):
                asked = Stopwatch()
                batch = next(feed)
                wait_s += asked.elapsed_s
                step(batch)
            percent.append(100.0 * wait_s / watch.elapsed_s)
            return 1000.0 * watch.elapsed_s / training.num_steps

    def on_resident() -> float:
        watch = Stopwatch()
        for _ in range(training.num_steps):
            step(resident)
        return 1000.0 * watch.elapsed_s / training.num_steps

    title = f"training step, DynUNet {training.widths}, batch {training.batch_size}, {training.cases.words}"
    name = f"Voxelocity Feed, augmented ({cpu_budget()} threads)"
    yield compare(
        title,
        "ms a step",
        "smaller",
        [Side(name=name, once=with_feed), Side(name="the same batch again and again", once=on_resident)],
        repeats=training.repeats,
        note="on the CPU, where the feed's threads take time from the step as well",
    )
    # The first round is the warm-up.
    waited = Figure(name=name, note="", values=tuple(percent[-training.repeats :]))
    yield Comparison(title=f"waiting for data, {title}", unit="% of a step", better="smaller", figures=(waited,))


def _feed(training: Training, cases: PreparedCases) -> AbstractContextManager[Iterator[Batch]]:
    return ours.feed_of(cases, patch=training.patch, batch_size=training.batch_size, augment=AugmentConfig())


def _step_of(training: Training) -> Callable[[Batch], object]:
    # Imported here: networks bring MONAI with them.
    from voxelocity.step import (
        LossConfig,
        NetworkConfig,
        OptimizerConfig,
        PrecisionConfig,
        TrainingStep,
        build_loss,
        build_network,
    )

    strides = ((2, 2, 2),) * (len(training.widths) - 1)
    step = TrainingStep(
        build_network(
            NetworkConfig(name="dynunet", widths=training.widths, strides=strides),
            num_channels=training.cases.num_channels,
            num_classes=training.cases.num_classes,
            seed=0,
        ),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3),
        precision=PrecisionConfig(compute="float32"),
        device=torch.device("cpu"),
    )
    return lambda batch: step(batch, 1e-3)
