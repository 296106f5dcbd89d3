"""`voxelocity bench feed`: batches to a waiting consumer; what a training waits for them is `training`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voxelocity.bench.comparison import BenchSide, Comparison, compare
from voxelocity.bench.peers import PEERS, missing
from voxelocity.bench.phantom import BenchFolders, PhantomSet
from voxelocity.bench.streams import AS_MONAI, AS_NNUNET, NONE, Work, batches_per_s
from voxelocity.core.region import Index3
from voxelocity.data.augment import AugmentConfig
from voxelocity.observe import cpu_budget

# Scanner-sized CTs in memory, so that nothing but the feed is measured.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4)


@dataclass(frozen=True, kw_only=True)
class FeedScenario:
    """A machine whose accelerators are faster than its cores: how many batches a second can it make?"""

    cases: PhantomSet = _FOUR_CTS
    # MLPerf's 3-D U-Net trains on patches of this size, seven at a time.
    patch: Index3 = (128, 128, 128)
    batch_size: int = 7
    num_batches: int = 12
    # Two workers finish two batches at about the same time: an even number, and enough that the first matters little.
    num_peer_batches: int = 6
    repeats: int = 5


_WORKERS = cpu_budget()
_CHAINS: dict[str, tuple[str, AugmentConfig, tuple[str, ...]]] = {
    "crop": ("crop only", NONE, ("MONAI", "nnU-Net")),
    "affine": ("affine, flips, scale, shift, noise", AS_MONAI, ("MONAI",)),
    "nnU-Net": ("nnU-Net's default augmentation", AS_NNUNET, ("nnU-Net", "batchgeneratorsv2")),
}
"""What is done to patches, in words and as our configuration, and the peers that do it."""
_NAMES = {
    "MONAI": (f"MONAI DataLoader(num_workers={_WORKERS})", "MONAI ThreadDataLoader(num_workers=0)"),
    "nnU-Net": (f"nnU-Net v2's loader, {_WORKERS} processes, Blosc2 files",),
    "batchgeneratorsv2": (f"batchgeneratorsv2 in torch's DataLoader(num_workers={_WORKERS}), cases in memory",),
}
"""Of each peer's streams."""


def run(scenario: FeedScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    with tempfile.TemporaryDirectory(prefix="feed-", dir=folders.work) as name:
        options = {"patch": scenario.patch, "batch_size": scenario.batch_size, "workers": (_WORKERS,)}
        work = Work.of(scenario.cases, folders.work, place=Path(name), **options)
        # Made chain by chain, so that what a peer keeps is released before the next.
        for chain in _CHAINS:
            yield _rates(scenario, work, chain)


def _rates(scenario: FeedScenario, work: Work, chain: str) -> Comparison:
    words, augment, peers = _CHAINS[chain]
    sides = [work.feed_side(augment, scenario.num_batches)]
    for peer in peers:
        why, streams = missing(peer), PEERS[peer].streams
        assert streams is not None
        if why:
            sides += [BenchSide(name=name, once=None, note=why) for name in _NAMES[peer]]
            continue
        for name, stream in zip(_NAMES[peer], streams(work, chain).values(), strict=True):
            once = functools.partial(batches_per_s, stream, scenario.num_peer_batches)
            sides.append(BenchSide(name=name, once=once))
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
