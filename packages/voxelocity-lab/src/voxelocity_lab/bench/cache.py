"""`voxelocity bench cache`: first patch of an entry, reopening many entries, every kind of cache, bytes and memory."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.region import Index3, Region
from voxelocity.data.pipeline import PreparedCases
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Once, compare
from voxelocity_lab.bench.peers import peer_side
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet
from voxelocity_lab.bench.processes import measure_growth_bytes
from voxelocity_lab.bench.streams import MEMORY, NONE, BenchCases, batches_per_s, feed_of
from voxelocity_observe.core.clock import Stopwatch

# A thorax and abdomen CT, one entry; a patch is a seventieth of it.
_LARGE_CT = PhantomSet(kind="ct", shape=(512, 512, 256), num_cases=1)
# As many small cases as MSD's hippocampus set has for training: what counts is the cost of an entry.
_MANY_SMALL = PhantomSet(kind="ct", shape=(36, 50, 36), num_cases=208)
# Two trainings on one machine, over the same CTs.
_SHARED_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=2)
# Four abdominal CTs as an archive keeps them.
_FOUR_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4, packed=True)
_BUDGET_BYTES = 2**32
_LARGER_THAN_ANY_SHM = 2**50
_NUM_EPOCHS = 3
"""Of the rotating tier in a round."""
MONAI_FORMS: dict[str, bool | str] = {
    "filled at the start": False,
    "runtime_cache=True": True,
    'runtime_cache="processes"': "processes",
}
"""Ways a CacheDataset keeps items, by name: its `runtime_cache`."""


@dataclass(frozen=True, kw_only=True)
class CacheKinds:
    """One thread that takes a patch of one case after the other, as a batch of one: no loader, the data set alone."""

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


@dataclass(frozen=True, kw_only=True)
class CacheScenario:
    """A training that comes back to its cache: larger than memory, made on another day, shared with a second job."""

    large: PhantomSet = _LARGE_CT
    patch: Index3 = (96, 96, 96)
    small: PhantomSet = _MANY_SMALL
    small_patch: Index3 = (32, 32, 32)
    shared: PhantomSet = _SHARED_CTS
    num_processes: int = 2
    kinds: CacheKinds = field(default_factory=CacheKinds)
    repeats: int = 9
    repeats_from_disk: int = 5
    repeats_of_epochs: int = 5
    repeats_of_processes: int = 2


def run(scenario: CacheScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; reopening also of real cases (MSD hippocampus)."""
    with tempfile.TemporaryDirectory(prefix="cache-", dir=folders.work) as name:
        place = Path(name)
        yield from _first_patch(scenario, BenchCases.of(scenario.large, folders.work), place / "large")
        yield _reopening(scenario, BenchCases.of(scenario.small, folders.work), place / "small")
        if real := folders.hippocampus():
            words = f"{len(real)} cases of MSD's hippocampus"
            yield _reopening(scenario, BenchCases(refs=real, words=words, kind="mr", num_classes=3), place / "real")
        yield _patches_by_kind(scenario.kinds, BenchCases.of(scenario.kinds.cases, folders.work), place / "kinds")
        shared = BenchCases.of(scenario.shared, folders.work)
        yield _bytes_per_voxel(scenario, shared, place / "shared")
        yield _shared_memory(scenario, shared, place / "shared")


def disk_tiers(folder: Path) -> dict[str, dict[str, Any]]:
    """Every way that voxels are kept on a disk, by name: tiers, and formats within them."""
    tiers = {
        f"disk tier, format {format}": {"tier": "disk", "folder": str(folder / f"disk-{format}"), "format": format}
        for format in ("raw", "blosc2")
    }
    return {**tiers, "lmdb tier": {"tier": "lmdb", "folder": str(folder / "lmdb")}}


_PERSISTENT = (
    ("PersistentDataset", "int16", "MONAI"),
    ("PersistentDataset", "float32", "MONAI"),
    ("LMDBDataset", "float32", "LMDBDataset"),
)
"""MONAI's data sets that keep items in files, how they keep images, and the peer."""


def _first_patch(scenario: CacheScenario, cases: BenchCases, place: Path) -> Iterator[Comparison]:
    tiers = disk_tiers(place)
    for cache in tiers.values():
        cases.fill(cache)

    def ours(cache: Mapping[str, Any]) -> Callable[[], object]:
        return functools.partial(_read_patch, cases.open(cache), 0, scenario.patch)

    def theirs(name: str, dtype: str, before: Callable[[], None]) -> Once:
        from voxelocity_lab.bench.peers import monai

        chain = [*monai.preparing_small(cases.kind, dtype), *monai.cropping(scenario.patch)]

        def open_() -> Callable[[], object]:
            dataset = monai.dataset(name, cases.refs, chain, cache_dir=place / f"{name}-{dtype}")
            return lambda: dataset[0]

        # The entry is made now.
        open_()()
        return _prepared_ms(open_, before)

    for where, before, repeats in (
        ("in the page cache", lambda: None, scenario.repeats),
        ("dropped from the page cache", lambda: _drop(place), scenario.repeats_from_disk),
    ):
        sides = [
            BenchSide(name=f"Voxelocity, {name}", once=_prepared_ms(functools.partial(ours, cache), before))
            for name, cache in tiers.items()
        ]
        for name, dtype, peer in _PERSISTENT:
            make = functools.partial(theirs, name, dtype, before)
            sides.append(peer_side(f"MONAI {name}, {dtype}", peer, make))
        yield compare(
            f"{'x'.join(map(str, scenario.patch))} patch of an entry not opened before, files {where}, {cases.words}",
            "ms",
            sides,
            repeats=repeats,
            note="image as float32 and label; labels of the peers are kept as uint8, half of MONAI's default item",
        )


def _prepared_ms(open_: Callable[[], Callable[[], object]], before: Callable[[], None]) -> Once:
    def once() -> float:
        call = open_()
        before()
        watch = Stopwatch()
        call()
        return 1000.0 * watch.elapsed_s

    return once


def _read_patch(cases: PreparedCases, index: int, patch: Index3) -> None:
    volume = cases[index]
    x, y, z = (max(0, n - side) // 2 for n, side in zip(volume.grid.shape, patch, strict=True))
    box = Region((x, y, z), (x + patch[0], y + patch[1], z + patch[2])).clip(volume.grid.shape)
    image, label = volume.read(box)
    image.astype(np.float32)
    assert label is not None, "phantoms have labels"
    label.copy()


def _reopening(scenario: CacheScenario, cases: BenchCases, place: Path) -> Comparison:
    def read_all(cache: Mapping[str, Any]) -> float:
        watch = Stopwatch()
        opened = cases.open(cache)
        for index in range(len(opened)):
            _read_patch(opened, index, scenario.small_patch)
        return watch.elapsed_s

    def persistent() -> Once:
        from voxelocity_lab.bench.peers import monai

        def once() -> float:
            chain = [*monai.preparing_small(cases.kind, "float32"), *monai.cropping(scenario.small_patch)]
            watch = Stopwatch()
            dataset = monai.dataset("PersistentDataset", cases.refs, chain, cache_dir=place / "persistent")
            for index in range(len(dataset)):
                dataset[index]
            return watch.elapsed_s

        once()
        return once

    sides = []
    for name, cache in disk_tiers(place).items():
        cases.fill(cache)
        sides.append(BenchSide(name=f"Voxelocity, {name}", once=functools.partial(read_all, cache)))
    return compare(
        f"a patch of each case from a cache on disk, just opened, {cases.words}",
        "s",
        [*sides, peer_side("MONAI PersistentDataset", "MONAI", persistent)],
        repeats=scenario.repeats_of_epochs,
        note="files in the page cache, one thread, opening included; every cache was built before",
    )


def _patches_by_kind(kinds: CacheKinds, cases: BenchCases, place: Path) -> Comparison:
    return compare(
        f"patches of {'x'.join(map(str, kinds.patch))} by kind of data set, {cases.words}",
        "patches/s",
        [*_our_kinds(kinds, cases, place), *_monai_kinds(kinds, cases, place)],
        repeats=kinds.repeats,
        note="crop only, one thread, batches of one, caches filled before, files in the page cache",
    )


def _our_kinds(kinds: CacheKinds, cases: BenchCases, place: Path) -> Iterator[BenchSide]:
    def rate(prepared: PreparedCases, num_patches: int, **options: Any) -> Once:
        feed = functools.partial(
            feed_of, prepared, patch=kinds.patch, batch_size=1, augment=NONE, num_threads=0, **options
        )
        return functools.partial(batches_per_s, feed, num_patches)

    tiers = {
        "memory tier, shared between processes": {"tier": "memory", "max_bytes": _BUDGET_BYTES},
        # What a machine without room in /dev/shm falls back to.
        "memory tier, each process its own copy": {"tier": "memory", "max_bytes": _LARGER_THAN_ANY_SHM},
        **disk_tiers(place),
    }
    for name, cache in tiers.items():
        with warnings.catch_warnings():
            # The second of our sides is there to show memory that cannot be shared.
            warnings.filterwarnings("ignore", message="cache: prepared cases cannot be shared")
            prepared = cases.fill(cache)
        yield BenchSide(name=f"Voxelocity, {name}", once=rate(prepared, kinds.num_patches))
    rotating = {
        "tier": "rotating",
        "max_bytes": _BUDGET_BYTES,
        "num_cases": kinds.cache_num,
        "replace_rate": kinds.replace_rate,
    }
    # The batch before them, which does not count, fills the first window.
    once = rate(cases.open(rotating), _NUM_EPOCHS * kinds.cache_num, cache=rotating)
    yield BenchSide(name="Voxelocity, rotating tier", once=once, note=kinds.rotation_words)


def _monai_kinds(kinds: CacheKinds, cases: BenchCases, place: Path) -> Iterator[BenchSide]:
    def epoch_of(name: str) -> Once:
        from voxelocity_lab.bench.peers import monai

        chain = [*monai.preparing(cases.kind), *monai.cropping(kinds.patch)]
        rotation = {"cache_num": kinds.cache_num, "replace_rate": kinds.replace_rate}
        options: dict[str, dict[str, Any]] = {
            "PersistentDataset": {"cache_dir": place / "persistent"},
            "LMDBDataset": {"cache_dir": place / "lmdb"},
            "SmartCacheDataset": rotation,
        }
        dataset = monai.dataset(name, cases.refs, chain, **options.get(name, {}))
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
    from voxelocity_lab.bench.peers import monai

    watch = Stopwatch()
    for index in range(len(dataset)):
        # A batch of one, as ours: without it a patch is a view, and its voxels are never read.
        monai.batch_of_one(dataset[index])
    end_of_epoch()
    return len(dataset) / watch.elapsed_s


def _bytes_per_voxel(scenario: CacheScenario, cases: BenchCases, place: Path) -> Comparison:
    num_voxels = int(np.prod(scenario.shared.shape)) * len(cases.refs)

    def side(name: str, num_bytes: int, note: str = "") -> BenchSide:
        return BenchSide(name=name, once=lambda: num_bytes / num_voxels, note=note)

    def monai_bytes(*, indices: bool) -> Once:
        from voxelocity_lab.bench.peers import monai

        num_bytes = monai.cached_bytes(cases.refs, cases.kind, indices=indices)
        return lambda: num_bytes / num_voxels

    held = cases.fill(MEMORY)
    in_memory = sum(held[index].num_bytes for index in range(len(held)))
    sides = [side("Voxelocity, memory tier", in_memory, "foreground voxels included")]
    for name, cache in disk_tiers(place).items():
        cases.fill(cache)
        files = sum(path.stat().st_size for path in Path(cache["folder"]).rglob("*") if path.is_file())
        sides.append(side(f"Voxelocity, {name}", files))
    for words, indices in (("image and label", False), ("and foreground indices (FgBgToIndicesd)", True)):
        make = functools.partial(monai_bytes, indices=indices)
        sides.append(peer_side(f"MONAI CacheDataset, {words}", "MONAI", make))
    title, note = f"bytes a cached voxel takes, {cases.words}", "image, label and where to center patches"
    return compare(title, "bytes", sides, repeats=1, warmup=0, note=note)


def _shared_memory(scenario: CacheScenario, cases: BenchCases, place: Path) -> Comparison:
    def grown_mib(holder: str, **options: Any) -> Once:
        options |= {"kind": cases.kind, "num_classes": cases.num_classes}
        num_processes = scenario.num_processes
        return lambda: measure_growth_bytes(holder, cases.refs, num_processes=num_processes, options=options) / 2**20

    tiers = {"memory tier": MEMORY, **disk_tiers(place)}
    sides = [
        BenchSide(name=f"Voxelocity, {name}", once=grown_mib("ours", cache=cache)) for name, cache in tiers.items()
    ]
    for words, form in MONAI_FORMS.items():
        make = functools.partial(grown_mib, "monai", runtime_cache=form)
        sides.append(peer_side(f"MONAI CacheDataset, {words}", "MONAI", make))
    return compare(
        f"memory of {scenario.num_processes} processes that hold all voxels of {cases.words}",
        "MiB (PSS)",
        sides,
        repeats=scenario.repeats_of_processes,
        warmup=0,
        note=(
            "growth of these processes and of those they start, after all imports, every voxel looked at; each process "
            "is a training of its own, so that MONAI's list handed from a parent to its ranks is not among its forms"
        ),
    )


def _drop(place: Path) -> None:
    """Asks the system to forget the pages of every file below `place`; they are read from the disk next time."""
    for path in place.rglob("*"):
        if path.is_file():
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    # Pages not yet written cannot be dropped.
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
