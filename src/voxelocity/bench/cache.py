"""`voxelocity bench cache`: first patch of an entry, reopening many entries, bytes on disk and in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voxelocity.bench import ours
from voxelocity.bench.kinds import Kinds, patches_by_kind
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import Kind, PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.sharing import grown_bytes
from voxelocity.core.config import AUTO, Config
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import PreparedCases

_ON_DISK = ("disk", "lmdb")
# A thorax and abdomen CT, one entry; a patch is a seventieth of it.
_LARGE_CT = PhantomSet(kind="ct", shape=(512, 512, 256), num_cases=1)
# As many small cases as MSD's hippocampus set has for training: what counts is the cost of an entry.
_MANY_SMALL = PhantomSet(kind="ct", shape=(36, 50, 36), num_cases=208)
# Two trainings on one machine, over the same CTs.
_SHARED_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=2)


MONAI_FORMS: dict[str, bool | str] = {
    "filled at the start": False,
    "runtime_cache=True": True,
    'runtime_cache="processes"': "processes",
}
"""Ways a CacheDataset keeps items, by name: its `runtime_cache`."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A training that comes back to its cache: larger than memory, made on another day, shared with a second job."""

    large: PhantomSet = _LARGE_CT
    patch: Index3 = (96, 96, 96)
    small: PhantomSet = _MANY_SMALL
    small_patch: Index3 = (32, 32, 32)
    shared: PhantomSet = _SHARED_CTS
    num_processes: int = 2
    kinds: Kinds = field(default_factory=Kinds)
    repeats: int = 9
    repeats_from_disk: int = 5
    repeats_of_epochs: int = 5
    repeats_of_processes: int = 2


def run(scenario: Cache, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; reopening also of real cases (MSD hippocampus)."""
    with tempfile.TemporaryDirectory(prefix="cache-", dir=places.work) as name:
        place = Path(name)
        yield from _first_patch(scenario, make_phantoms(scenario.large, places.work), place / "large")
        small = make_phantoms(scenario.small, places.work)
        words, kind, num_classes = scenario.small.words, scenario.small.kind, scenario.small.num_classes
        yield _reopening(scenario, small, words, kind=kind, num_classes=num_classes, place=place / "small")
        if real := places.hippocampus():
            words = f"{len(real)} cases of MSD's hippocampus"
            yield _reopening(scenario, real, words, kind="mr", num_classes=3, place=place / "real")
        yield patches_by_kind(scenario.kinds, disk_tiers(CacheConfig, place / "kinds"), places.work, place / "kinds")
        shared = make_phantoms(scenario.shared, places.work)
        yield _bytes_per_voxel(scenario, shared, place / "shared")
        yield _shared_memory(scenario, shared, place / "shared")


def disk_tiers(model: type[Config], folder: Path) -> dict[str, dict[str, Any]]:
    """Every way this cache configuration keeps voxels on a disk, by name: tiers, and choices within them."""
    offered = typing.get_args(model.model_fields["tier"].annotation)
    choices = {
        name: [choice for choice in typing.get_args(field.annotation) if choice != AUTO]
        for name, field in model.model_fields.items()
        if name != "tier" and typing.get_origin(field.annotation) is Literal
    }
    tiers: dict[str, dict[str, Any]] = {}
    for tier in (tier for tier in _ON_DISK if tier in offered):
        plain = {"tier": tier, "folder": str(folder / tier)}
        variants = [(key, choice) for key, values in choices.items() for choice in values]
        if tier != "disk" or not variants:
            tiers[f"{tier} tier"] = plain
            continue
        for key, choice in variants:
            tiers[f"{tier} tier, {key} {choice}"] = {**plain, "folder": str(folder / f"{tier}-{choice}"), key: choice}
    return tiers


def _first_patch(scenario: Cache, refs: Sequence[VolumeRef], place: Path) -> Iterator[Comparison]:
    kind, num_classes = scenario.large.kind, scenario.large.num_classes
    openers: dict[str, Callable[[], Callable[[], object]]] = {}
    for name, cache in disk_tiers(CacheConfig, place).items():
        ours.filled(ours.prepared_cases(refs, cache, kind=kind, num_classes=num_classes))

        def open_ours(cache: Mapping[str, Any] = cache) -> Callable[[], object]:
            cases = ours.prepared_cases(refs, cache, kind=kind, num_classes=num_classes)
            return lambda: _read_patch(cases, 0, scenario.patch)

        openers[f"Voxelocity, {name}"] = open_ours
    peers = _persistent_openers(scenario, refs, place)
    side = "x".join(map(str, scenario.patch))
    for where, before, repeats in (
        ("in the page cache", lambda: None, scenario.repeats),
        ("dropped from the page cache", lambda: _drop(place), scenario.repeats_from_disk),
    ):
        sides = [Side(name=name, once=_prepared_ms(open_, before)) for name, open_ in {**openers, **peers}.items()]
        sides += [Side(name=name, once=None, note=why) for name, why in _absent().items()]
        yield compare(
            f"{side} patch of an entry not opened before, files {where}, {scenario.large.words}",
            "ms",
            "smaller",
            sides,
            repeats=repeats,
            note="image as float32 and label; labels of the peers are kept as uint8, half of MONAI's default item",
        )


def _prepared_ms(open_: Callable[[], Callable[[], object]], before: Callable[[], None]) -> Callable[[], float]:
    def once() -> float:
        call = open_()
        before()
        start_s = time.perf_counter()
        call()
        return 1000.0 * (time.perf_counter() - start_s)

    return once


def _read_patch(cases: PreparedCases, index: int, patch: Index3) -> None:
    volume = cases[index]
    x, y, z = (max(0, n - side) // 2 for n, side in zip(volume.grid.shape, patch, strict=True))
    box = Region((x, y, z), (x + patch[0], y + patch[1], z + patch[2])).clip(volume.grid.shape)
    image, label = volume.read(box)
    image.astype(np.float32)
    assert label is not None, "phantoms have labels"
    label.copy()


def _persistent_openers(
    scenario: Cache, refs: Sequence[VolumeRef], place: Path
) -> dict[str, Callable[[], Callable[[], object]]]:
    if missing("MONAI"):
        return {}
    from voxelocity.bench import monai_side

    random = monai_side.cropping(scenario.patch)
    openers: dict[str, Callable[[], Callable[[], object]]] = {}
    for dtype in ("int16", "float32"):
        chain = [*monai_side.preparing_small(scenario.large.kind, dtype), *random]

        def open_persistent(chain: list[Any] = chain, folder: Path = place / f"persistent-{dtype}") -> Any:
            dataset = monai_side.persistent(refs, chain, folder)
            return lambda: dataset[0]

        openers[f"MONAI PersistentDataset, {dtype}"] = open_persistent
    if not missing("LMDBDataset"):

        def open_lmdb() -> Any:
            dataset = monai_side.lmdb(refs, chain, place / "lmdb-monai")
            return lambda: dataset[0]

        openers["MONAI LMDBDataset, float32"] = open_lmdb
    for open_ in openers.values():
        open_()()
    return openers


def _absent() -> dict[str, str]:
    names = {"MONAI PersistentDataset": "MONAI", "MONAI LMDBDataset, float32": "LMDBDataset"}
    return {name: why for name, peer in names.items() if (why := missing(peer))}


def _reopening(
    scenario: Cache, refs: Sequence[VolumeRef], words: str, *, kind: Kind, num_classes: int, place: Path
) -> Comparison:
    sides = []
    for name, cache in disk_tiers(CacheConfig, place).items():
        ours.filled(ours.prepared_cases(refs, cache, kind=kind, num_classes=num_classes))

        def once(cache: Mapping[str, Any] = cache) -> float:
            start_s = time.perf_counter()
            cases = ours.prepared_cases(refs, cache, kind=kind, num_classes=num_classes)
            for index in range(len(cases)):
                _read_patch(cases, index, scenario.small_patch)
            return time.perf_counter() - start_s

        sides.append(Side(name=f"Voxelocity, {name}", once=once))
    why = missing("MONAI")
    name = "MONAI PersistentDataset"
    if why:
        sides.append(Side(name=name, once=None, note=why))
    else:
        _epoch_of_persistent(scenario, refs, kind, place / "persistent")
        sides.append(Side(name=name, once=lambda: _epoch_of_persistent(scenario, refs, kind, place / "persistent")))
    return compare(
        f"a patch of each case from a cache on disk, just opened, {words}",
        "s",
        "smaller",
        sides,
        repeats=scenario.repeats_of_epochs,
        note="files in the page cache, one thread, opening included; every cache was built before",
    )


def _epoch_of_persistent(scenario: Cache, refs: Sequence[VolumeRef], kind: Kind, folder: Path) -> float:
    from voxelocity.bench import monai_side

    chain = [*monai_side.preparing_small(kind, "float32"), *monai_side.cropping(scenario.small_patch)]
    start_s = time.perf_counter()
    dataset = monai_side.persistent(refs, chain, folder)
    for index in range(len(dataset)):
        dataset[index]
    return time.perf_counter() - start_s


def _bytes_per_voxel(scenario: Cache, refs: Sequence[VolumeRef], place: Path) -> Comparison:
    kind, num_classes = scenario.shared.kind, scenario.shared.num_classes
    num_voxels = sum(np.prod(scenario.shared.shape) for _ in refs)
    held = ours.filled(ours.prepared_cases(refs, ours.MEMORY, kind=kind, num_classes=num_classes))
    in_memory = sum(held[index].num_bytes for index in range(len(held))) / num_voxels
    sides = [Side(name="Voxelocity, memory tier", once=lambda: in_memory, note="foreground voxels included")]
    for name, cache in disk_tiers(CacheConfig, place).items():
        ours.filled(ours.prepared_cases(refs, cache, kind=kind, num_classes=num_classes))
        files = sum(path.stat().st_size for path in Path(cache["folder"]).rglob("*") if path.is_file())
        sides.append(Side(name=f"Voxelocity, {name}", once=_constant(files / num_voxels)))
    why = missing("MONAI")
    for words, indices in (("image and label", False), ("and foreground indices (FgBgToIndicesd)", True)):
        name = f"MONAI CacheDataset, {words}"
        if why:
            sides.append(Side(name=name, once=None, note=why))
            continue
        from voxelocity.bench import monai_side

        per_voxel = monai_side.cached_bytes(refs, kind, indices=indices) / num_voxels
        sides.append(Side(name=name, once=_constant(per_voxel)))
    title, note = f"bytes a cached voxel takes, {scenario.shared.words}", "image, label and where to center patches"
    return compare(title, "bytes", "smaller", sides, repeats=1, warmup=0, note=note)


def _constant(value: float) -> Callable[[], float]:
    return lambda: float(value)


def _shared_memory(scenario: Cache, refs: Sequence[VolumeRef], place: Path) -> Comparison:
    plain = {"kind": scenario.shared.kind, "num_classes": scenario.shared.num_classes}

    def side(name: str, holder: str, options: Mapping[str, Any]) -> Side:
        def once() -> float:
            return grown_bytes(holder, refs, num_processes=scenario.num_processes, options={**plain, **options}) / 2**20

        return Side(name=name, once=once)

    tiers = {"memory tier": ours.MEMORY, **disk_tiers(CacheConfig, place)}
    sides = [side(f"Voxelocity, {name}", "ours", {"cache": cache}) for name, cache in tiers.items()]
    why = missing("MONAI")
    for words, form in MONAI_FORMS.items():
        name = f"MONAI CacheDataset, {words}"
        sides.append(Side(name=name, once=None, note=why) if why else side(name, "monai", {"runtime_cache": form}))
    return compare(
        f"memory of {scenario.num_processes} processes that hold all voxels of {scenario.shared.words}",
        "MiB (PSS)",
        "smaller",
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
