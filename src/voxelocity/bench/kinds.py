"""An epoch of cropped patches by kind of data set: what each way of keeping cases costs once it is filled."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.stream import batches_per_s
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
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


def patches_by_kind(kinds: Kinds, disk_tiers: Mapping[str, Mapping[str, Any]], work: Path, place: Path) -> Comparison:
    """Patches per second of every kind, ours and MONAI's.

    Args:
        kinds: what to run.
        disk_tiers: settings of our caches on a disk, by name.
        work: where phantoms are.
        place: folder for the peers' caches.
    """
    refs = make_phantoms(kinds.cases, work)
    tiers = {
        "memory tier, shared between processes": {"tier": "memory", "max_bytes": _BUDGET_BYTES},
        # What a machine without room in /dev/shm falls back to.
        "memory tier, each process its own copy": {"tier": "memory", "max_bytes": _LARGER_THAN_ANY_SHM},
        **disk_tiers,
    }
    return compare(
        f"patches of {'x'.join(map(str, kinds.patch))} by kind of data set, {kinds.cases.words}",
        "patches/s",
        "larger",
        [
            *(_ours(kinds, refs, name, cache) for name, cache in tiers.items()),
            _rotating(kinds, refs),
            *_peers(kinds, refs, place),
        ],
        repeats=kinds.repeats,
        note="crop only, one thread, batches of one, caches filled before, files in the page cache",
    )


def _ours(kinds: Kinds, refs: Sequence[VolumeRef], name: str, cache: Mapping[str, Any]) -> Side:
    with warnings.catch_warnings():
        # The second of our sides is there to show memory that cannot be shared.
        warnings.filterwarnings("ignore", message="cache: prepared cases cannot be shared")
        cases = ours.filled(ours.phantom_cases(refs, kinds.cases, cache))
    feed = functools.partial(ours.feed_of, cases, patch=kinds.patch, batch_size=1, augment=ours.NONE, num_threads=0)
    return Side(name=f"Voxelocity, {name}", once=functools.partial(batches_per_s, feed, kinds.num_patches))


def _rotating(kinds: Kinds, refs: Sequence[VolumeRef]) -> Side:
    cache = {
        "tier": "rotating",
        "max_bytes": _BUDGET_BYTES,
        "num_cases": kinds.cache_num,
        "replace_rate": kinds.replace_rate,
    }
    cases = ours.phantom_cases(refs, kinds.cases, cache)
    feed = functools.partial(
        ours.feed_of, cases, patch=kinds.patch, batch_size=1, augment=ours.NONE, num_threads=0, cache=cache
    )
    # The batch before them, which does not count, fills the first window.
    num_patches = _NUM_EPOCHS * kinds.cache_num
    once = functools.partial(batches_per_s, feed, num_patches)
    return Side(name="Voxelocity, rotating tier", once=once, note=_rotation_words(kinds, len(refs)))


def _rotation_words(kinds: Kinds, num_cases: int) -> str:
    return f"{kinds.cache_num} of {num_cases} in memory, {kinds.replace_rate:.0%} replaced after each epoch"


def _peers(kinds: Kinds, refs: Sequence[VolumeRef], place: Path) -> Iterator[Side]:
    names = ("Dataset", "CacheDataset", "PersistentDataset", "LMDBDataset", "SmartCacheDataset")
    if why := missing("MONAI"):
        yield from (Side(name=f"MONAI {name}", once=None, note=why) for name in names)
        return
    from voxelocity.bench import monai_side

    random = monai_side.cropping(kinds.patch)
    chain = [*monai_side.preparing(kinds.cases.kind), *random]
    whole: dict[str, Callable[[], Any]] = {
        "Dataset": lambda: monai_side.uncached(refs, chain),
        "CacheDataset": lambda: monai_side.cached(refs, kinds.cases.kind, random),
        "PersistentDataset": lambda: monai_side.persistent(refs, chain, place / "persistent"),
        "LMDBDataset": lambda: monai_side.lmdb(refs, chain, place / "lmdb"),
    }
    for name, make in whole.items():
        why = missing("LMDBDataset") if name == "LMDBDataset" else ""
        yield Side(name=f"MONAI {name}", once=None if why else _epoch_of(make()), note=why)
    dataset = monai_side.smart_cached(refs, chain, cache_num=kinds.cache_num, replace_rate=kinds.replace_rate)
    yield Side(
        name="MONAI SmartCacheDataset",
        once=lambda: _smart_epoch(dataset),
        note=_rotation_words(kinds, len(refs)),
    )


def _epoch_of(dataset: Any) -> Callable[[], float]:
    return lambda: _patches_per_s(dataset, lambda: None)


def _smart_epoch(dataset: Any) -> float:
    # Replacements are prepared during the epoch, which ends when they are in place.
    dataset.start()
    rate = _patches_per_s(dataset, dataset.update_cache)
    # Not in the background of the next side.
    dataset.shutdown()
    return rate


def _patches_per_s(dataset: Any, end_of_epoch: Callable[[], None]) -> float:
    from voxelocity.bench import monai_side

    watch = Stopwatch()
    for index in range(len(dataset)):
        # A batch of one, as ours: without it a patch is a view, and its voxels are never read.
        monai_side.batch_of_one(dataset[index])
    end_of_epoch()
    return len(dataset) / watch.elapsed_s
