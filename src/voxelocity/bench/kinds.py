"""An epoch of cropped patches by kind of data set: what each way of keeping cases costs once it is filled."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.bench import ours
from voxelocity.bench.comparison import Comparison, Once, Side, compare
from voxelocity.bench.peers import peer_side
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.streams import batches_per_s
from voxelocity.core.region import Index3
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import Stopwatch

# Four abdominal CTs as an archive keeps them.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4, packed=True)
_BUDGET_BYTES = 2**32
_LARGER_THAN_ANY_SHM = 2**50
_NUM_EPOCHS = 3
"""Of the rotating tier in a round."""


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """One thread that takes a patch of each case in turn, as a batch of one: no loader, the data set alone."""

    cases: PhantomSet = _FOUR_CTS
    patch: Index3 = (96, 96, 96)
    # Ours has more patches in a round, or it would last only milliseconds.
    num_patches: int = 200
    # Of SmartCacheDataset and of our rotating tier: what is in memory at a time, and how much of it an epoch replaces.
    cache_num: int = 3
    replace_rate: float = 0.25
    repeats: int = 5

    @property
    def rotation_words(self) -> str:
        return (
            f"{self.cache_num} of {self.cases.num_cases} in memory, {self.replace_rate:.0%} replaced after each epoch"
        )


def patches_by_kind(kinds: Kinds, disk_tiers: Mapping[str, Mapping[str, Any]], work: Path, place: Path) -> Comparison:
    """Patches per second of every kind, ours and MONAI's, whose caches are in `place`; phantoms are in `work`.

    `disk_tiers` are settings of our caches on a disk, by name.
    """
    return compare(
        f"patches of {'x'.join(map(str, kinds.patch))} by kind of data set, {kinds.cases.words}",
        "patches/s",
        [*_ours(kinds, disk_tiers, work), *_peers(kinds, work, place)],
        repeats=kinds.repeats,
        note="crop only, one thread, batches of one, caches filled before, files in the page cache",
    )


def _ours(kinds: Kinds, disk_tiers: Mapping[str, Mapping[str, Any]], work: Path) -> Iterator[Side]:
    phantoms = ours.Cases.of(kinds.cases, work)

    def rate(cases: PreparedCases, num_patches: int, **options: Any) -> Once:
        feed = functools.partial(
            ours.feed_of, cases, patch=kinds.patch, batch_size=1, augment=ours.NONE, num_threads=0, **options
        )
        return functools.partial(batches_per_s, feed, num_patches)

    tiers = {
        "memory tier, shared between processes": {"tier": "memory", "max_bytes": _BUDGET_BYTES},
        # What a machine without room in /dev/shm falls back to.
        "memory tier, each process its own copy": {"tier": "memory", "max_bytes": _LARGER_THAN_ANY_SHM},
        **disk_tiers,
    }
    for name, cache in tiers.items():
        with warnings.catch_warnings():
            # The second of our sides is there to show memory that cannot be shared.
            warnings.filterwarnings("ignore", message="cache: prepared cases cannot be shared")
            cases = phantoms.filled(cache)
        yield Side(name=f"Voxelocity, {name}", once=rate(cases, kinds.num_patches))
    rotating = {
        "tier": "rotating",
        "max_bytes": _BUDGET_BYTES,
        "num_cases": kinds.cache_num,
        "replace_rate": kinds.replace_rate,
    }
    # The batch before them, which does not count, fills the first window.
    once = rate(phantoms.opened(rotating), _NUM_EPOCHS * kinds.cache_num, cache=rotating)
    yield Side(name="Voxelocity, rotating tier", once=once, note=kinds.rotation_words)


def _peers(kinds: Kinds, work: Path, place: Path) -> Iterator[Side]:
    refs = make_phantoms(kinds.cases, work)

    def epoch_of(name: str) -> Once:
        from voxelocity.bench.peers import monai

        chain = [*monai.preparing(kinds.cases.kind), *monai.cropping(kinds.patch)]
        rotation = {"cache_num": kinds.cache_num, "replace_rate": kinds.replace_rate}
        options: dict[str, dict[str, Any]] = {
            "PersistentDataset": {"cache_dir": place / "persistent"},
            "LMDBDataset": {"cache_dir": place / "lmdb"},
            "SmartCacheDataset": rotation,
        }
        dataset = monai.dataset(name, refs, chain, **options.get(name, {}))
        if name == "SmartCacheDataset":
            return functools.partial(_smart_epoch, dataset)
        return functools.partial(_patches_per_s, dataset, lambda: None)

    for name in ("Dataset", "CacheDataset", "PersistentDataset", "LMDBDataset", "SmartCacheDataset"):
        peer = name if name == "LMDBDataset" else "MONAI"
        note = kinds.rotation_words if name == "SmartCacheDataset" else ""
        yield peer_side(f"MONAI {name}", peer, functools.partial(epoch_of, name), note)


def _smart_epoch(dataset: Any) -> float:
    # Replacements are prepared during the epoch, which ends when they are in place.
    dataset.start()
    rate = _patches_per_s(dataset, dataset.update_cache)
    # Not in the background of the next side.
    dataset.shutdown()
    return rate


def _patches_per_s(dataset: Any, end_of_epoch: Callable[[], None]) -> float:
    from voxelocity.bench.peers import monai

    watch = Stopwatch()
    for index in range(len(dataset)):
        # A batch of one, as ours: without it a patch is a view, and its voxels are never read.
        monai.batch_of_one(dataset[index])
    end_of_epoch()
    return len(dataset) / watch.elapsed_s
