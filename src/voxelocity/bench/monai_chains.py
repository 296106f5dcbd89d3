"""`voxelocity bench monai`: scripts written for MONAI, under its names and under those of `voxelocity.monai`."""

from __future__ import annotations

import copy
import functools
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.sharing import grown_bytes
from voxelocity.bench.stream import OpenStream, batches_per_s
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.observe import Stopwatch

if TYPE_CHECKING:
    from voxelocity.bench.drop_in_side import ChainName, Names

# Abdominal CTs as they come from a scanner; at 1.5x1.5x2 mm about 330x330x200, cropped to the body 280x220x200.
_THREE_CTS = PhantomSet(kind="ct", shape=(512, 512, 160), num_cases=3, spacing_mm=(0.97, 0.97, 2.5), packed=True)
# The grid of BraTS: four contrasts, three regions as labels, 250 MB a case as MONAI keeps it.
_TWO_BRAINS = PhantomSet(kind="mr", shape=(240, 240, 155), num_cases=2)


@dataclass(frozen=True, kw_only=True)
class MonaiChains:
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
        title: what it does.
        ours: its batches under ours.
        theirs: its batches under MONAI's, by the words for its settings; empty where MONAI is not installed.
        patches: in a batch.
        variants: further forms of ours, by words.
        note: for the reader.
    """

    title: str
    ours: OpenStream
    theirs: Mapping[str, OpenStream]
    patches: int
    variants: Mapping[str, OpenStream]
    note: str = ""


def run(scenario: MonaiChains, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; every pair is checked for equal batches first."""
    refs = make_phantoms(scenario.cases, places.work)
    brains = make_phantoms(scenario.brains, places.work)
    with tempfile.TemporaryDirectory(prefix="monai-", dir=places.work) as name:
        place = Path(name)
        for pair in _pairs(scenario, refs, brains, place):
            yield _patches_per_s(scenario, pair)
        yield _filling(scenario, refs[: scenario.num_filled], place)
    yield _memory(scenario, refs[: scenario.num_filled])


def _pairs(
    scenario: MonaiChains, refs: Sequence[VolumeRef], brains: Sequence[VolumeRef], place: Path
) -> Iterator[_Pair]:
    # One after the other, so that what a pair caches is released before the next.
    yield from _cached_spleen(scenario, refs)
    yield _persistent_spleen(scenario, refs, place)
    yield from _other_chains(scenario, refs, brains)


def _cached_spleen(scenario: MonaiChains, refs: Sequence[VolumeRef]) -> Iterator[_Pair]:
    """The spleen chain with RandAffined from memory: by every loader, and compiled."""
    from voxelocity.bench import drop_in_side as side

    ours = side.cached("voxelocity.monai", refs, side.whole("spleen", scenario.patch))
    theirs = _theirs(lambda: side.cached("monai.data", refs, side.whole("spleen", scenario.patch)))
    pair = functools.partial(_pair, scenario, patches=scenario.batch_size * side.PATCHES_PER_IMAGE)
    thread = pair("CacheDataset + ThreadDataLoader", "spleen chain with RandAffined", ours, theirs)
    yield thread
    # What a copy of the case costs has been shown.
    theirs = {words: dataset for words, dataset in theirs.items() if not words}
    for num_workers in (0, scenario.num_workers) if scenario.num_workers else (0,):
        what = f"CacheDataset + DataLoader(num_workers={num_workers})"
        yield pair(what, "spleen chain with RandAffined", ours, theirs, loader="DataLoader", num_workers=num_workers)
    chain = side.whole("spleen", scenario.patch)

    def compiled(module: Names) -> OpenStream:
        dataset = side.compiled(refs, copy.deepcopy(chain), module)
        return side.stream(module, "ThreadDataLoader", dataset, batch_size=scenario.batch_size, num_workers=0)

    yield replace(
        thread,
        title="compile(chain, cache='memory') in a Dataset + ThreadDataLoader, spleen chain with RandAffined",
        ours=compiled("voxelocity.monai"),
        theirs={words: opened for words, opened in thread.theirs.items() if not words},
        variants={"in MONAI's own Dataset + ThreadDataLoader": compiled("monai.data")},
        note="MONAI's side is its CacheDataset + ThreadDataLoader",
    )


def _persistent_spleen(scenario: MonaiChains, refs: Sequence[VolumeRef], place: Path) -> _Pair:
    from voxelocity.bench import drop_in_side as side

    chain = functools.partial(side.whole, "spleen", scenario.patch)
    ours = side.persistent("voxelocity.monai", refs, chain(), place / "ours")
    theirs = _theirs(lambda: side.persistent("monai.data", refs, chain(), place / "theirs"))
    patches = scenario.batch_size * side.PATCHES_PER_IMAGE
    what = "PersistentDataset + ThreadDataLoader"
    return _pair(scenario, what, "spleen chain with RandAffined", ours, theirs, patches=patches)


def _other_chains(scenario: MonaiChains, refs: Sequence[VolumeRef], brains: Sequence[VolumeRef]) -> Iterator[_Pair]:
    from voxelocity.bench import drop_in_side as side

    chains: tuple[tuple[ChainName, Sequence[VolumeRef], int, str], ...] = (
        (
            "spleen without RandAffined",
            refs,
            scenario.batch_size * side.PATCHES_PER_IMAGE,
            "spleen chain without RandAffined",
        ),
        ("brats", brains, scenario.batch_size, "BraTS chain, 4 channels"),
    )
    for name, cases, patches, words in chains:
        ours = side.cached("voxelocity.monai", cases, side.whole(name, scenario.patch))
        make = functools.partial(side.cached, "monai.data", cases, side.whole(name, scenario.patch))
        yield _pair(scenario, "CacheDataset + ThreadDataLoader", words, ours, _theirs(make), patches=patches)


def _theirs(make: Callable[[], Any]) -> dict[str, Any]:
    """MONAI's data set as a script has it, and with the one setting that spares it a copy of every case."""
    if missing("MONAI"):
        return {}
    dataset = make()
    if not hasattr(dataset, "copy_cache"):
        return {"": dataset}
    uncopied = copy.copy(dataset)
    uncopied.copy_cache = False
    return {"": dataset, ", copy_cache=False": uncopied}


def _pair(
    scenario: MonaiChains,
    what: str,
    chain: str,
    ours: Any,
    theirs: Mapping[str, Any],
    *,
    patches: int,
    loader: Literal["DataLoader", "ThreadDataLoader"] = "ThreadDataLoader",
    num_workers: int = 0,
) -> _Pair:
    from voxelocity.bench import drop_in_side as side

    open_ = functools.partial(side.stream, batch_size=scenario.batch_size, num_workers=num_workers)
    return _Pair(
        title=f"{what}, {chain}",
        ours=open_("voxelocity.monai", loader, ours),
        theirs={words: open_("monai.data", loader, data) for words, data in theirs.items()},
        patches=patches,
        variants={},
    )


def _patches_per_s(scenario: MonaiChains, pair: _Pair) -> Comparison:
    from voxelocity.bench import drop_in_side as side

    def once(stream: OpenStream, num_batches: int) -> Callable[[], float]:
        return lambda: pair.patches * batches_per_s(stream, num_batches)

    sides = [Side(name="Voxelocity", once=once(pair.ours, scenario.num_batches))]
    for words, stream in pair.variants.items():
        sides.append(Side(name=f"Voxelocity, {words}", once=once(stream, scenario.num_batches)))
    for words, stream in pair.theirs.items():
        sides.append(Side(name=f"MONAI{words}", once=once(stream, scenario.num_peer_batches)))
    notes = [
        f"{pair.patches} patches of {'x'.join(map(str, scenario.patch))} a batch",
        *([pair.note] * bool(pair.note)),
    ]
    if pair.theirs:
        found = side.checked(pair.ours, pair.theirs[""], pair.title)
        notes.append(f"first batch of one seed: {found.words}")
    else:
        sides.append(Side(name="MONAI", once=None, note=missing("MONAI")))
    return compare(pair.title, "patches/s", "larger", sides, repeats=scenario.repeats, note="; ".join(notes))


def _filling(scenario: MonaiChains, refs: Sequence[VolumeRef], place: Path) -> Comparison:
    from voxelocity.bench import drop_in_side as side

    numbers = itertools.count()

    def once(module: Names) -> float:
        # Files of their own, so that nothing kept of an earlier round can be found by their paths and times.
        folder = place / f"fill-{next(numbers)}"
        copies = [_copied(ref, folder) for ref in refs]
        chain = side.whole("spleen", scenario.patch)
        watch = Stopwatch()
        side.cached(module, copies, chain)
        seconds = watch.elapsed_s
        shutil.rmtree(folder)
        return seconds

    why = missing("MONAI")
    cases = replace(scenario.cases, num_cases=len(refs))
    return compare(
        f"filling a CacheDataset, spleen chain, {cases.words}",
        "s",
        "smaller",
        [
            Side(name="Voxelocity", once=lambda: once("voxelocity.monai")),
            Side(name="MONAI", once=None if why else lambda: once("monai.data"), note=why),
        ],
        repeats=scenario.repeats,
        note=".nii.gz in the page cache, num_workers=1, the default",
    )


def _copied(ref: VolumeRef, folder: Path) -> VolumeRef:
    folder.mkdir(parents=True, exist_ok=True)
    assert ref.label is not None, "phantoms have labels"
    images = tuple(Path(shutil.copyfile(path, folder / path.name)) for path in ref.images)
    return replace(ref, images=images, label=Path(shutil.copyfile(ref.label, folder / ref.label.name)))


def _memory(scenario: MonaiChains, refs: Sequence[VolumeRef]) -> Comparison:
    def once(module: str) -> float:
        return grown_bytes("drop-in", refs, num_processes=1, options={"module": module}) / 2**20 / len(refs)

    why = missing("MONAI")
    cases = replace(scenario.cases, num_cases=len(refs))
    return compare(
        f"memory of a filled CacheDataset, spleen chain, {cases.words}",
        "MiB a case (PSS)",
        "smaller",
        [
            Side(name="Voxelocity", once=lambda: once("voxelocity.monai")),
            Side(name="MONAI", once=None if why else lambda: once("monai.data"), note=why),
        ],
        repeats=scenario.repeats_of_memory,
        warmup=0,
        note="image, label and the voxels to center patches on; growth of a fresh process after a first, tiny data set",
    )
