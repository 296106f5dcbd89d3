"""`voxelocity bench feed`: batches to a waiting consumer, and a training step's wait."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.stream import OpenStream, batches_per_s
from voxelocity.bench.waiting import Training, waiting_shares
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import cpu_budget

# Scanner-sized CTs in memory, so that nothing but the feed is measured.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4)


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


def run(scenario: Feeds, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    refs = make_phantoms(scenario.cases, places.work)
    cases = ours.filled(ours.phantom_cases(refs, scenario.cases, ours.MEMORY))
    with tempfile.TemporaryDirectory(prefix="feed-", dir=places.work) as name:
        yield from _chains(scenario, refs, cases, Path(name))
    yield from waiting_shares(scenario.training, places.work)


def _chains(scenario: Feeds, refs: Sequence[VolumeRef], cases: PreparedCases, place: Path) -> Iterator[Comparison]:
    volumes = [cases[index].load() for index in range(len(cases))]
    nnunet = functools.partial(_nnunet_streams, scenario, volumes, place)
    monai = functools.partial(_monai_streams, scenario, refs)
    by_hand = _batchgenerators_streams(scenario, volumes)
    # Made chain by chain, so that what a peer keeps is released before the next.
    yield _rates(scenario, cases, "crop only", ours.NONE, {**monai(augmented=False), **nnunet(augmented=False)})
    yield _rates(scenario, cases, "affine, flips, scale, shift, noise", ours.AS_MONAI, monai(augmented=True))
    yield _rates(
        scenario, cases, "nnU-Net's default augmentation", ours.AS_NNUNET, {**nnunet(augmented=True), **by_hand}
    )


def _rates(
    scenario: Feeds, cases: PreparedCases, words: str, augment: AugmentConfig, peers: dict[str, OpenStream | str]
) -> Comparison:
    feed = functools.partial(ours.feed_of, cases, patch=scenario.patch, batch_size=scenario.batch_size, augment=augment)
    streams: dict[str, OpenStream | str] = {f"Voxelocity Feed ({cpu_budget()} threads)": feed, **peers}
    what = f"{scenario.batch_size} patches of {'x'.join(map(str, scenario.patch))}, {words}"
    counts = dict.fromkeys(streams, scenario.num_peer_batches) | {next(iter(streams)): scenario.num_batches}
    return compare(
        f"batches of {what}, {scenario.cases.words} in memory",
        "batches/s",
        "larger",
        [_side(name, stream, counts[name]) for name, stream in streams.items()],
        repeats=scenario.repeats,
        # Each stream's first batch is its warm-up.
        warmup=0,
        note="a consumer that does nothing else",
    )


def _side(name: str, stream: OpenStream | str, num_batches: int) -> Side:
    if isinstance(stream, str):
        return Side(name=name, once=None, note=stream)
    return Side(name=name, once=lambda: batches_per_s(stream, num_batches))


def _monai_streams(scenario: Feeds, refs: Sequence[VolumeRef], *, augmented: bool) -> dict[str, OpenStream | str]:
    workers = cpu_budget()
    loader, threads = f"MONAI DataLoader(num_workers={workers})", "MONAI ThreadDataLoader(num_workers=0)"
    if why := missing("MONAI"):
        return {loader: why, threads: why}
    from voxelocity.bench import monai_side

    random = monai_side.augmenting(scenario.patch) if augmented else monai_side.cropping(scenario.patch)
    dataset = monai_side.cached(refs, scenario.cases.kind, random)
    batch_size = scenario.batch_size
    return {
        loader: monai_side.process_loader(dataset, batch_size, workers),
        threads: monai_side.thread_loader(dataset, batch_size),
    }


def _nnunet_streams(
    scenario: Feeds, volumes: list[Volume], place: Path, *, augmented: bool
) -> dict[str, OpenStream | str]:
    workers = cpu_budget()
    name = f"nnU-Net v2's loader, {workers} processes, Blosc2 files"
    if why := missing("nnU-Net"):
        return {name: why}
    from voxelocity.bench import nnunet_feed

    if not place.joinpath("nnunet").exists():
        nnunet_feed.write_cases(volumes, place / "nnunet", scenario.patch)
    stream = functools.partial(
        nnunet_feed.opened,
        place / "nnunet",
        scenario.patch,
        batch_size=scenario.batch_size,
        num_classes=scenario.cases.num_classes,
        augmented=augmented,
        num_workers=workers,
    )
    return {name: stream}


def _batchgenerators_streams(scenario: Feeds, volumes: list[Volume]) -> dict[str, OpenStream | str]:
    workers = cpu_budget()
    name = f"batchgeneratorsv2 in torch's DataLoader(num_workers={workers}), cases in memory"
    if why := missing("batchgeneratorsv2") or missing("MONAI"):
        return {name: why}
    from voxelocity.bench import monai_side, nnunet_side

    augmentation = nnunet_side.default_augmentation(scenario.patch)
    dataset = nnunet_side.LoadedPatches(volumes, scenario.patch, augmentation)
    return {name: monai_side.process_loader(dataset, scenario.batch_size, workers)}
