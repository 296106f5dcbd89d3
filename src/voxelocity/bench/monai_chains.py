"""`voxelocity bench monai`: scripts written for MONAI, under its names and under those of `voxelocity.monai`."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxelocity.bench.comparison import BenchSide, Comparison, Once, compare
from voxelocity.bench.peers import missing, peer_side
from voxelocity.bench.phantom import BenchFolders, PhantomSet, make_phantoms
from voxelocity.bench.processes import grown_bytes
from voxelocity.bench.streams import OpenStream, batches_per_s
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.observe import Stopwatch

if TYPE_CHECKING:
    from voxelocity.bench.peers.monai_scripts import ChainName, Names

# Abdominal CTs as they come from a scanner; at 1.5x1.5x2 mm about 330x330x200, cropped to the body 280x220x200.
_THREE_CTS = PhantomSet(kind="ct", shape=(512, 512, 160), num_cases=3, spacing_mm=(0.97, 0.97, 2.5), packed=True)
# The grid of BraTS: four contrasts, three regions as labels, 250 MB a case as MONAI keeps it.
_TWO_BRAINS = PhantomSet(kind="mr", shape=(240, 240, 155), num_cases=2)
_WITH_AFFINE = "spleen chain with RandAffined"
_THREADS = "CacheDataset + ThreadDataLoader"


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


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A script under both packages' names.

    Attributes:
        patches: in a batch.
        theirs: batches by the words for settings; empty where MONAI is not installed.
        variants: further forms of ours, by words.
    """

    title: str
    patches: int
    ours: OpenStream
    theirs: Mapping[str, OpenStream]
    variants: Mapping[str, OpenStream] = field(default_factory=dict)
    note: str = ""


def run(scenario: MonaiScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; every pair is checked for equal batches first."""
    refs = make_phantoms(scenario.cases, folders.work)
    brains = make_phantoms(scenario.brains, folders.work)
    with tempfile.TemporaryDirectory(prefix="monai-", dir=folders.work) as name:
        place = Path(name)
        for pair in _pairs(scenario, refs, brains, place):
            yield _patches_per_s(scenario, pair)
        yield _filling(scenario, refs[: scenario.num_filled], place)
    yield _memory(scenario, refs[: scenario.num_filled])


def _pairs(
    scenario: MonaiScenario, refs: Sequence[VolumeRef], brains: Sequence[VolumeRef], place: Path
) -> Iterator[_Pair]:
    """One after the other, so that what a pair caches is released before the next."""
    from voxelocity.bench.peers import monai_scripts as scripts

    def cached(name: ChainName, cases: Sequence[VolumeRef], module: Names) -> Any:
        return scripts.cached(module, cases, scripts.whole(name, scenario.patch))

    def persistent(module: Names) -> Any:
        return scripts.persistent(module, refs, scripts.whole("spleen", scenario.patch), place / module)

    yield from _cached_spleen(scenario, refs, partial(cached, "spleen", refs))
    yield _pair(scenario, "PersistentDataset + ThreadDataLoader", _WITH_AFFINE, persistent)
    without = partial(cached, "spleen without RandAffined", refs)
    yield _pair(scenario, _THREADS, "spleen chain without RandAffined", without)
    yield _pair(scenario, _THREADS, "BraTS chain, 4 channels", partial(cached, "brats", brains), patches_per_image=1)


def _cached_spleen(
    scenario: MonaiScenario, refs: Sequence[VolumeRef], cached: Callable[[Names], Any]
) -> Iterator[_Pair]:
    """The spleen chain with RandAffined from memory: by every loader, and compiled."""
    from voxelocity.bench.peers import monai_scripts as scripts

    ours, theirs = cached("voxelocity.monai"), _theirs(cached)
    pair = partial(_pair_of, scenario, ours=ours)
    thread = pair(_THREADS, _WITH_AFFINE, theirs=theirs)
    yield thread
    # What a copy of the case costs has been shown.
    theirs = {words: dataset for words, dataset in theirs.items() if not words}
    for number in (0, scenario.num_workers) if scenario.num_workers else (0,):
        what = f"CacheDataset + DataLoader(num_workers={number})"
        yield pair(what, _WITH_AFFINE, theirs=theirs, loader="DataLoader", num_workers=number)

    def compiled(module: Names) -> OpenStream:
        dataset = scripts.compiled(module, refs, scripts.whole("spleen", scenario.patch))
        return scripts.stream(module, "ThreadDataLoader", dataset, batch_size=scenario.batch_size, num_workers=0)

    yield replace(
        thread,
        title=f"compile(chain, cache='memory') in a Dataset + ThreadDataLoader, {_WITH_AFFINE}",
        ours=compiled("voxelocity.monai"),
        theirs={words: opened for words, opened in thread.theirs.items() if not words},
        variants={"in MONAI's own Dataset + ThreadDataLoader": compiled("monai.data")},
        note=f"MONAI's side is its {_THREADS}",
    )


def _theirs(make: Callable[[Names], Any]) -> dict[str, Any]:
    """MONAI's data set as a script has it, and with the one setting that spares it a copy of every case."""
    if missing("MONAI"):
        return {}
    dataset = make("monai.data")
    if not hasattr(dataset, "copy_cache"):
        return {"": dataset}
    uncopied = copy.copy(dataset)
    uncopied.copy_cache = False
    return {"": dataset, ", copy_cache=False": uncopied}


def _pair(
    scenario: MonaiScenario,
    what: str,
    chain: str,
    make: Callable[[Names], Any],
    *,
    patches_per_image: int | None = None,
) -> _Pair:
    ours = make("voxelocity.monai")
    return _pair_of(scenario, what, chain, ours=ours, theirs=_theirs(make), patches_per_image=patches_per_image)


def _pair_of(
    scenario: MonaiScenario,
    what: str,
    chain: str,
    *,
    ours: Any,
    theirs: Mapping[str, Any],
    patches_per_image: int | None = None,
    loader: Literal["DataLoader", "ThreadDataLoader"] = "ThreadDataLoader",
    num_workers: int = 0,
) -> _Pair:
    from voxelocity.bench.peers import monai_scripts as scripts

    def open_(module: Names, dataset: Any) -> OpenStream:
        return scripts.stream(module, loader, dataset, batch_size=scenario.batch_size, num_workers=num_workers)

    return _Pair(
        title=f"{what}, {chain}",
        patches=scenario.batch_size * (patches_per_image or scripts.PATCHES_PER_IMAGE),
        ours=open_("voxelocity.monai", ours),
        theirs={words: open_("monai.data", data) for words, data in theirs.items()},
    )


def _patches_per_s(scenario: MonaiScenario, pair: _Pair) -> Comparison:
    from voxelocity.bench.peers import monai_scripts as scripts

    def side(name: str, stream: OpenStream, num_batches: int) -> BenchSide:
        return BenchSide(name=name, once=lambda: pair.patches * batches_per_s(stream, num_batches))

    sides = [side("Voxelocity", pair.ours, scenario.num_batches)]
    sides += [side(f"Voxelocity, {words}", each, scenario.num_batches) for words, each in pair.variants.items()]
    sides += [side(f"MONAI{words}", each, scenario.num_peer_batches) for words, each in pair.theirs.items()]
    notes = [f"{pair.patches} patches of {'x'.join(map(str, scenario.patch))} a batch"]
    notes += [pair.note] if pair.note else []
    if pair.theirs:
        notes.append(f"first batch of one seed: {scripts.checked(pair.ours, pair.theirs[''], pair.title)}")
    else:
        sides.append(BenchSide(name="MONAI", once=None, note=missing("MONAI")))
    return compare(pair.title, "patches/s", sides, repeats=scenario.repeats, note="; ".join(notes))


def _both(once: Callable[[Names], float]) -> list[BenchSide]:
    def theirs() -> Once:
        return lambda: once("monai.data")

    return [BenchSide(name="Voxelocity", once=lambda: once("voxelocity.monai")), peer_side("MONAI", "MONAI", theirs)]


def _filling(scenario: MonaiScenario, refs: Sequence[VolumeRef], place: Path) -> Comparison:
    from voxelocity.bench.peers import monai_scripts as scripts

    numbers = itertools.count()

    def once(module: Names) -> float:
        # Files of their own, so that nothing kept of an earlier round can be found by their paths and times.
        folder = place / f"fill-{next(numbers)}"
        copies = [_copied(ref, folder) for ref in refs]
        chain = scripts.whole("spleen", scenario.patch)
        watch = Stopwatch()
        scripts.cached(module, copies, chain)
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


def _copied(ref: VolumeRef, folder: Path) -> VolumeRef:
    folder.mkdir(parents=True, exist_ok=True)
    assert ref.label is not None, "phantoms have labels"
    images = tuple(Path(shutil.copyfile(path, folder / path.name)) for path in ref.images)
    return replace(ref, images=images, label=Path(shutil.copyfile(ref.label, folder / ref.label.name)))


def _memory(scenario: MonaiScenario, refs: Sequence[VolumeRef]) -> Comparison:
    def once(module: Names) -> float:
        return grown_bytes("drop-in", refs, num_processes=1, options={"module": module}) / 2**20 / len(refs)

    return compare(
        f"memory of a filled CacheDataset, spleen chain, {replace(scenario.cases, num_cases=len(refs)).words}",
        "MiB a case (PSS)",
        _both(once),
        repeats=scenario.repeats_of_memory,
        warmup=0,
        note="image, label and the voxels to center patches on; growth of a fresh process after a first, tiny data set",
    )
