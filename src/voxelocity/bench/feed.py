"""`voxelocity bench feed`: batches to a waiting consumer, emulated accelerators, and a training step's wait."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from voxelocity.bench import ours
from voxelocity.bench.emulated import Accelerator, most_kept_busy
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.stream import OpenStream, batches_per_s
from voxelocity.bench.waiting import Training, waiting_shares
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import cpu_budget

# Scanner-sized CTs in memory, so that nothing but the feed is measured.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4)


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """A machine whose accelerators are faster than its cores: how many of them can it feed?"""

    cases: PhantomSet = _FOUR_CTS
    # MLPerf's 3-D U-Net trains on patches of this size, seven at a time.
    patch: Index3 = (128, 128, 128)
    accelerator: Accelerator = field(default_factory=Accelerator)
    num_batches: int = 12
    # Two workers end two batches at about the same time: an even number.
    num_peer_batches: int = 2
    trial_s: float = 3.0
    min_trial_batches: int = 8
    training: Training = field(default_factory=Training)
    repeats: int = 5


def run(scenario: Feeds, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    refs = make_phantoms(scenario.cases, places.work)
    cases = ours.filled(ours.phantom_cases(refs, scenario.cases, ours.MEMORY))
    chains = (
        ("crop only", ours.NONE, _monai_streams(scenario, refs, augmented=False)),
        ("affine, flips, scale, shift, noise", ours.AS_MONAI, _monai_streams(scenario, refs, augmented=True)),
        ("nnU-Net's default augmentation", ours.AS_NNUNET, _nnunet_streams(scenario, cases)),
    )
    for words, augment, peers in chains:
        yield from _rates_and_accelerators(scenario, cases, words, augment, peers)
    yield from waiting_shares(scenario.training, places.work)


def _rates_and_accelerators(
    scenario: Feeds, cases: PreparedCases, words: str, augment: AugmentConfig, peers: dict[str, OpenStream | str]
) -> Iterator[Comparison]:
    feed = functools.partial(
        ours.feed_of, cases, patch=scenario.patch, batch_size=scenario.accelerator.batch_size, augment=augment
    )
    streams: dict[str, OpenStream | str] = {f"Voxelocity Feed ({cpu_budget()} threads)": feed, **peers}
    what = f"{scenario.accelerator.batch_size} patches of {'x'.join(map(str, scenario.patch))}, {words}"
    counts = dict.fromkeys(streams, scenario.num_peer_batches) | {next(iter(streams)): scenario.num_batches}
    rates = compare(
        f"batches of {what}, {scenario.cases.words} in memory",
        "batches/s",
        "larger",
        [_side(name, stream, counts[name]) for name, stream in streams.items()],
        repeats=scenario.repeats,
        # Each stream's first batch is its warm-up.
        warmup=0,
        note="a consumer that does nothing else",
    )
    yield rates
    medians = {figure.name: figure.median for figure in rates.figures}
    yield compare(
        f"emulated H100 kept busy: {what}",
        "accelerators",
        "larger",
        [_accelerators(scenario, name, stream, medians[name]) for name, stream in streams.items()],
        repeats=1,
        warmup=0,
        note=(
            f"MLPerf Storage's rule for its 3-D U-Net: each takes a batch of {scenario.accelerator.batch_size} every "
            f"{scenario.accelerator.step_s:g} s and computes at least {scenario.accelerator.busy_share:.0%} of the "
            "time; 0 means that one alone waits longer"
        ),
    )


def _side(name: str, stream: OpenStream | str, num_batches: int) -> Side:
    if isinstance(stream, str):
        return Side(name=name, once=None, note=stream)
    return Side(name=name, once=lambda: batches_per_s(stream, num_batches))


def _accelerators(scenario: Feeds, name: str, stream: OpenStream | str, rate: float | None) -> Side:
    if isinstance(stream, str) or rate is None:
        return Side(name=name, once=None, note=str(stream))

    def once() -> float:
        return float(
            most_kept_busy(
                stream,
                scenario.accelerator,
                batches_per_s=rate,
                trial_s=scenario.trial_s,
                min_batches=scenario.min_trial_batches,
            )
        )

    could = rate * scenario.accelerator.step_s
    return Side(name=name, once=once, note=f"at its full rate it would feed {could:.3g}")


def _monai_streams(scenario: Feeds, refs: Sequence[VolumeRef], *, augmented: bool) -> dict[str, OpenStream | str]:
    workers = cpu_budget()
    names = [f"MONAI DataLoader(num_workers={workers})", "MONAI ThreadDataLoader(num_workers=0)"]
    if why := missing("MONAI"):
        return dict.fromkeys(names, why)
    from voxelocity.bench import monai_side

    random = monai_side.augmenting(scenario.patch) if augmented else monai_side.cropping(scenario.patch)
    dataset = monai_side.cached(refs, scenario.cases.kind, random)
    streams = monai_side.loaders(dataset, scenario.accelerator.batch_size, [workers])
    return dict(zip(names, streams.values(), strict=True))


def _nnunet_streams(scenario: Feeds, cases: PreparedCases) -> dict[str, OpenStream | str]:
    workers = cpu_budget()
    name = f"batchgeneratorsv2 in {workers} worker processes"
    if why := missing("batchgeneratorsv2") or missing("MONAI"):
        return {name: why}
    from voxelocity.bench import monai_side, nnunet_side

    augmentation = nnunet_side.default_augmentation(scenario.patch)
    volumes = [cases[index].load() for index in range(len(cases))]
    dataset = nnunet_side.LoadedPatches(volumes, scenario.patch, augmentation)
    streams = monai_side.loaders(dataset, scenario.accelerator.batch_size, [workers])
    return {name: next(iter(streams.values()))}
