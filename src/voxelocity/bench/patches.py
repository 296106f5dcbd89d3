"""`voxelocity bench patches`: patches cut from memory and nothing else, against MONAI and against the memory itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.stream import batches_per_s, fastest
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import Stopwatch, cpu_budget


@dataclass(frozen=True, kw_only=True)
class Patches:
    """A training without augmentation: what is left is copying boxes of stored voxels into batches of float32."""

    # As in `transforms`: scanner-sized CT with one channel, small MR with four.
    sets: tuple[PhantomSet, ...] = (
        PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4),
        PhantomSet(kind="mr", shape=(128, 128, 128), num_cases=8),
    )
    patch: Index3 = (96, 96, 96)
    batch_size: int = 4
    # Of each side in a round: about half a second.
    num_batches: int = 100
    num_peer_batches: int = 40
    workers: tuple[int, ...] = (0, 2)
    repeats: int = 9


def run(scenario: Patches, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    for phantoms in scenario.sets:
        refs = make_phantoms(phantoms, places.work)
        cases = ours.filled(ours.phantom_cases(refs, phantoms, ours.MEMORY))
        yield _patches_per_s(scenario, phantoms, refs, cases)


def _patches_per_s(
    scenario: Patches, phantoms: PhantomSet, refs: Sequence[VolumeRef], cases: PreparedCases
) -> Comparison:
    feed = functools.partial(
        ours.feed_of, cases, patch=scenario.patch, batch_size=scenario.batch_size, augment=ours.NONE
    )
    volumes = [cases[index].load() for index in range(len(cases))]
    num_copied = scenario.num_batches * scenario.batch_size
    sides = [
        Side(
            name=f"Voxelocity Feed ({cpu_budget()} threads)",
            once=lambda: scenario.batch_size * batches_per_s(feed, scenario.num_batches),
        ),
        _monai(scenario, phantoms, refs),
        Side(
            name=f"plain copy and cast ({cpu_budget()} threads)",
            once=lambda: copies_per_s(volumes, scenario.patch, num_copied, num_threads=cpu_budget()),
            note="the same boxes into the same two arrays again and again: what the memory allows",
        ),
    ]
    return compare(
        f"{'x'.join(map(str, scenario.patch))} patches cut from memory, {phantoms.words}",
        "patches/s",
        "larger",
        sides,
        repeats=scenario.repeats,
        note="image to float32 and label to uint8; against the plain copy, the last column is the share of its rate",
    )


def copies_per_s(volumes: Sequence[Volume], patch: Index3, num_copies: int, *, num_threads: int) -> float:
    """Rate at which NumPy copies random boxes of image and label into buffers that are at hand, casting the image."""
    starts = np.random.default_rng(0).random((num_copies, 3))

    def copy(thread: int) -> None:
        image = np.zeros((volumes[0].spec.num_channels, *patch), dtype=np.float32)
        label = np.zeros(patch, dtype=np.uint8)
        for number in range(thread, num_copies, num_threads):
            volume = volumes[number % len(volumes)]
            corner = [
                int(at * (n - side + 1)) for at, n, side in zip(starts[number], volume.grid.shape, patch, strict=True)
            ]
            box = tuple(slice(start, start + side) for start, side in zip(corner, patch, strict=True))
            np.copyto(image, volume.image[(slice(None), *box)])
            assert volume.label is not None, "phantoms have labels"
            np.copyto(label, volume.label[box])

    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        watch = Stopwatch()
        list(pool.map(copy, range(num_threads)))
        return num_copies / watch.elapsed_s


def _monai(scenario: Patches, phantoms: PhantomSet, refs: Sequence[VolumeRef]) -> Side:
    name = "MONAI CacheDataset"
    if why := missing("MONAI"):
        return Side(name=name, once=None, note=why)
    from voxelocity.bench import monai_side

    dataset = monai_side.cached(refs, phantoms.kind, monai_side.cropping(scenario.patch))
    streams = monai_side.loaders(dataset, scenario.batch_size, scenario.workers)
    best, stream = fastest(streams, scenario.num_peer_batches)
    return Side(
        name=name,
        once=lambda: scenario.batch_size * batches_per_s(stream, scenario.num_peer_batches),
        note=f"copy_cache=False, no metadata, {best}",
    )
