"""`voxelocity bench feed`: batches to a waiting consumer, and a training step's wait."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from voxelocity.bench import ours
from voxelocity.bench.comparison import Comparison, Figure, Side, compare
from voxelocity.bench.peers import PEERS, missing
from voxelocity.bench.phantom import PhantomSet, Places
from voxelocity.bench.streams import Work, batches_per_s
from voxelocity.core.batch import Batch
from voxelocity.core.region import Index3
from voxelocity.data.augment import AugmentConfig
from voxelocity.observe import Stopwatch, cpu_budget

# Scanner-sized CTs in memory, so that nothing but the feed is measured.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4)
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


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """A machine whose accelerators are faster than its cores: how many batches a second can it make?"""

    cases: PhantomSet = _FOUR_CTS
    # MLPerf's 3-D U-Net trains on patches of this size, seven at a time.
    patch: Index3 = (128, 128, 128)
    batch_size: int = 7
    num_batches: int = 12
    # Two workers finish two batches at about the same time: an even number, and enough that the first matters little.
    num_peer_batches: int = 6
    training: Training = field(default_factory=Training)
    repeats: int = 5


_WORKERS = cpu_budget()
_CHAINS: dict[str, tuple[str, AugmentConfig, tuple[str, ...]]] = {
    "crop": ("crop only", ours.NONE, ("MONAI", "nnU-Net")),
    "affine": ("affine, flips, scale, shift, noise", ours.AS_MONAI, ("MONAI",)),
    "nnU-Net": ("nnU-Net's default augmentation", ours.AS_NNUNET, ("nnU-Net", "batchgeneratorsv2")),
}
"""What is done to patches, in words and as our configuration, and the peers that do it."""
_NAMES = {
    "MONAI": (f"MONAI DataLoader(num_workers={_WORKERS})", "MONAI ThreadDataLoader(num_workers=0)"),
    "nnU-Net": (f"nnU-Net v2's loader, {_WORKERS} processes, Blosc2 files",),
    "batchgeneratorsv2": (f"batchgeneratorsv2 in torch's DataLoader(num_workers={_WORKERS}), cases in memory",),
}
"""Of each peer's streams."""


def run(scenario: Feeds, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    with tempfile.TemporaryDirectory(prefix="feed-", dir=places.work) as name:
        options = {"patch": scenario.patch, "batch_size": scenario.batch_size, "workers": (_WORKERS,)}
        work = Work.of(scenario.cases, places.work, place=Path(name), **options)
        # Made chain by chain, so that what a peer keeps is released before the next.
        for chain in _CHAINS:
            yield _rates(scenario, work, chain)
    yield from _waiting_shares(scenario.training, places.work)


def _rates(scenario: Feeds, work: Work, chain: str) -> Comparison:
    words, augment, peers = _CHAINS[chain]
    sides = [work.feed_side(augment, scenario.num_batches)]
    for peer in peers:
        why, streams = missing(peer), PEERS[peer].streams
        assert streams is not None
        if why:
            sides += [Side(name=name, once=None, note=why) for name in _NAMES[peer]]
            continue
        for name, stream in zip(_NAMES[peer], streams(work, chain).values(), strict=True):
            once = functools.partial(batches_per_s, stream, scenario.num_peer_batches)
            sides.append(Side(name=name, once=once))
    what = f"{scenario.batch_size} patches of {'x'.join(map(str, scenario.patch))}, {words}"
    return compare(
        f"batches of {what}, {scenario.cases.words} in memory",
        "batches/s",
        sides,
        repeats=scenario.repeats,
        # Each stream's first batch is its warm-up.
        warmup=0,
        note="a consumer that does nothing else",
    )


def _waiting_shares(training: Training, folder: Path) -> Iterator[Comparison]:
    """How much longer a step takes with the feed than on resident batches, and how much of it is plain waiting."""
    work = Work.of(training.cases, folder, patch=training.patch, batch_size=training.batch_size, workers=())
    open_feed, step = work.feed(AugmentConfig()), _step_of(training)
    with open_feed() as feed:
        batch = next(feed)
        resident = batch.with_(image=batch.image.clone(), label=batch.label.clone())
    percent: list[float] = []

    def with_feed() -> float:
        with open_feed() as feed:
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
        [Side(name=name, once=with_feed), Side(name="the same batch again and again", once=on_resident)],
        repeats=training.repeats,
        note="on the CPU, where the feed's threads take time from the step as well",
    )
    # The first round is the warm-up.
    waited = Figure(name=name, note="", values=tuple(percent[-training.repeats :]))
    yield Comparison(title=f"waiting for data, {title}", unit="% of a step", better="smaller", figures=(waited,))


def _step_of(training: Training) -> Callable[[Batch], object]:
    from voxelocity import step as steps

    strides = ((2, 2, 2),) * (len(training.widths) - 1)
    network = steps.build_network(
        steps.NetworkConfig(name="dynunet", widths=training.widths, strides=strides),
        num_channels=training.cases.num_channels,
        num_classes=training.cases.num_classes,
        seed=0,
    )
    step = steps.TrainingStep(
        network,
        steps.build_loss(steps.LossConfig()),
        optimizer=steps.OptimizerConfig(name="adamw", learning_rate=1e-3),
        precision=steps.PrecisionConfig(compute="float32"),
        device=torch.device("cpu"),
    )
    return lambda batch: step(batch, 1e-3)
