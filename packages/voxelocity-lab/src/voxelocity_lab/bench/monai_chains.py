"""`voxelocity bench monai`: scripts written for MONAI, under its names and under those of `voxelocity.monai`."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Once, compare
from voxelocity_lab.bench.peers import peer_side
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet, make_phantoms
from voxelocity_lab.bench.processes import measure_growth_bytes
from voxelocity_lab.bench.streams import OpenStream, batches_per_s
from voxelocity_observe.core.clock import Stopwatch

if TYPE_CHECKING:
    from voxelocity_lab.bench.peers.monai_scripts import ChainName, Names

# Abdominal CTs as they come from a scanner; at 1.5x1.5x2 mm about 330x330x200, cropped to the body 280x220x200.
_THREE_CTS = PhantomSet(kind="ct", shape=(512, 512, 160), num_cases=3, spacing_mm=(0.97, 0.97, 2.5), packed=True)
# The grid of BraTS: four contrasts, three regions as labels, 250 MB a case as MONAI keeps it.
_TWO_BRAINS = PhantomSet(kind="mr", shape=(240, 240, 155), num_cases=2)
_WITH_AFFINE = "spleen chain with RandAffined"
_THREADS = "CacheDataset + ThreadDataLoader"
_OURS, _THEIRS, _UNCOPIED = "Voxelocity", "MONAI", "MONAI, copy_cache=False"


@dataclass(frozen=True, kw_only=True)
class MonaiScenario:
    """Someone with a script that works: how much faster is it when its import lines are changed?"""

    cases: PhantomSet = _THREE_CTS
    brains: PhantomSet = _TWO_BRAINS
    # The patch and the batch of MONAI's spleen tutorials: 4 patches of each of 2 images.
    patch: Index3 = (96, 96, 96)
    batch_size: int = 2
    # Of each side in a round; ours has more, or a round of it would last a fraction of a second.
    num_batches: int = 16
    # Two workers end two batches at about the same time: an even number.
    num_peer_batches: int = 2
    # Processes of the plain DataLoader, besides none.
    num_workers: int = 2
    # Of the cases, where filling and memory are measured: the peer takes some ten seconds of a core for each.
    num_filled: int = 2
    repeats: int = 5
    repeats_of_memory: int = 2


def run(scenario: MonaiScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; every pair is checked for equal batches first."""
    refs = make_phantoms(scenario.cases, folders.work)
    brains = make_phantoms(scenario.brains, folders.work)
    with tempfile.TemporaryDirectory(prefix="monai-", dir=folders.work) as name:
        place = Path(name)
        # One after the other, so that what a pair caches is released before the next.
        yield from _cached_spleen(scenario, refs)
        yield from _other_chains(scenario, refs, brains, place)
        yield _filling(scenario, refs[: scenario.num_filled], place)
    yield _memory(scenario, refs[: scenario.num_filled])


def _cached_spleen(scenario: MonaiScenario, refs: Sequence[VolumeRef]) -> Iterator[Comparison]:
    """The spleen chain with RandAffined from memory: by every loader, and compiled."""
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    chain = partial(scripts.whole, "spleen", scenario.patch)
    cached = _datasets(lambda module: scripts.make_cached(module, refs, chain()))
    threads = _streams(scenario, cached)
    yield _rate(scenario, f"{_THREADS}, {_WITH_AFFINE}", threads)
    # What a copy of the case costs has been shown.
    cached.pop(_UNCOPIED, None)
    for number in (0, scenario.num_workers) if scenario.num_workers else (0,):
        streams = _streams(scenario, cached, loader="DataLoader", num_workers=number)
        yield _rate(scenario, f"CacheDataset + DataLoader(num_workers={number}), {_WITH_AFFINE}", streams)

    def compiled(module: Names) -> OpenStream:
        dataset = scripts.make_compiled(module, refs, chain())
        return scripts.stream(module, "ThreadDataLoader", dataset, batch_size=scenario.batch_size, num_workers=0)

    streams = {
        _OURS: compiled("voxelocity.monai"),
        f"{_OURS}, in MONAI's own Dataset + ThreadDataLoader": compiled("monai.data"),
        _THEIRS: threads[_THEIRS],
    }
    title = f"compile(chain, cache='memory') in a Dataset + ThreadDataLoader, {_WITH_AFFINE}"
    yield _rate(scenario, title, streams, note=f"MONAI's side is its {_THREADS}")


def _other_chains(
    scenario: MonaiScenario, refs: Sequence[VolumeRef], brains: Sequence[VolumeRef], place: Path
) -> Iterator[Comparison]:
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    def rate(title: str, make: Callable[[Names], Any], **options: Any) -> Comparison:
        return _rate(scenario, title, _streams(scenario, _datasets(make)), **options)

    def cached(name: ChainName, cases: Sequence[VolumeRef]) -> Callable[[Names], Any]:
        return lambda module: scripts.make_cached(module, cases, scripts.whole(name, scenario.patch))

    yield rate(
        f"PersistentDataset + ThreadDataLoader, {_WITH_AFFINE}",
        lambda module: scripts.make_persistent(module, refs, scripts.whole("spleen", scenario.patch), place / module),
    )
    yield rate(f"{_THREADS}, spleen chain without RandAffined", cached("spleen without RandAffined", refs))
    yield rate(f"{_THREADS}, BraTS chain, 4 channels", cached("brats", brains), patches_per_image=1)


def _datasets(make: Callable[[Names], Any]) -> dict[str, Any]:
    """The data set under both packages' names, and MONAI's with the one setting that spares it a copy of every case."""
    found = {_OURS: make("voxelocity.monai"), _THEIRS: make("monai.data")}
    if hasattr(found[_THEIRS], "copy_cache"):
        found[_UNCOPIED] = copy.copy(found[_THEIRS])
        found[_UNCOPIED].copy_cache = False
    return found


def _streams(
    scenario: MonaiScenario,
    datasets: Mapping[str, Any],
    *,
    loader: Literal["DataLoader", "ThreadDataLoader"] = "ThreadDataLoader",
    num_workers: int = 0,
) -> dict[str, OpenStream]:
    """Batches of each of `_datasets`, by the loader of its package."""
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    options = {"batch_size": scenario.batch_size, "num_workers": num_workers}
    return {
        name: scripts.stream("voxelocity.monai" if name == _OURS else "monai.data", loader, dataset, **options)
        for name, dataset in datasets.items()
    }


def _rate(
    scenario: MonaiScenario,
    title: str,
    streams: Mapping[str, OpenStream],
    *,
    patches_per_image: int | None = None,
    note: str = "",
) -> Comparison:
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    num_patches = scenario.batch_size * (patches_per_image or scripts.PATCHES_PER_IMAGE)

    def side(name: str, stream: OpenStream) -> BenchSide:
        num_batches = scenario.num_batches if name.startswith(_OURS) else scenario.num_peer_batches
        return BenchSide(name=name, once=lambda: num_patches * batches_per_s(stream, num_batches))

    sides = [side(name, stream) for name, stream in streams.items()]
    notes = [f"{num_patches} patches of {'x'.join(map(str, scenario.patch))} a batch", *([note] if note else [])]
    notes.append(f"first batch of one seed: {scripts.check_same(streams[_OURS], streams[_THEIRS], title)}")
    return compare(title, "patches/s", sides, repeats=scenario.repeats, note="; ".join(notes))


def _both(once: Callable[[Names], float]) -> list[BenchSide]:
    def theirs() -> Once:
        return lambda: once("monai.data")

    return [BenchSide(name="Voxelocity", once=lambda: once("voxelocity.monai")), peer_side("MONAI", "MONAI", theirs)]


def _filling(scenario: MonaiScenario, refs: Sequence[VolumeRef], place: Path) -> Comparison:
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    numbers = itertools.count()

    def once(module: Names) -> float:
        # Files of their own, so that nothing kept of an earlier round can be found by their paths and times.
        folder = place / f"fill-{next(numbers)}"
        copies = [_copy_files(ref, folder) for ref in refs]
        chain = scripts.whole("spleen", scenario.patch)
        watch = Stopwatch()
        scripts.make_cached(module, copies, chain)
        seconds = watch.elapsed_s
        shutil.rmtree(folder)
        return seconds

    return compare(
        f"filling a CacheDataset, spleen chain, {replace(scenario.cases, num_cases=len(refs)).words}",
        "s",
        _both(once),
        repeats=scenario.repeats,
        note=".nii.gz in the page cache, num_workers=1, the default",
    )


def _copy_files(ref: VolumeRef, folder: Path) -> VolumeRef:
    folder.mkdir(parents=True, exist_ok=True)
    assert ref.label is not None, "phantoms have labels"
    images = tuple(Path(shutil.copyfile(path, folder / path.name)) for path in ref.images)
    return replace(ref, images=images, label=Path(shutil.copyfile(ref.label, folder / ref.label.name)))


def _memory(scenario: MonaiScenario, refs: Sequence[VolumeRef]) -> Comparison:
    def once(module: Names) -> float:
        return measure_growth_bytes("drop-in", refs, num_processes=1, options={"module": module}) / 2**20 / len(refs)

    return compare(
        f"memory of a filled CacheDataset, spleen chain, {replace(scenario.cases, num_cases=len(refs)).words}",
        "MiB a case (PSS)",
        _both(once),
        repeats=scenario.repeats_of_memory,
        warmup=0,
        note="image, label and the voxels to center patches on; growth of a fresh process after a first, tiny data set",
    )
