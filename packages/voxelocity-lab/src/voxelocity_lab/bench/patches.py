"""`voxelocity bench patches`, `transforms` and `feed`: patches cut from memory, augmented, and made into batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import generator
from voxelocity.core.volume import Volume
from voxelocity.data.augment import AugmentConfig, Source, augment, needed_box, sample
from voxelocity.data.patch import PatchConfig, choose_region
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Once, compare, cpu_ms
from voxelocity_lab.bench.peers import best_side, peer_side, versions
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet
from voxelocity_lab.bench.streams import AS_MONAI, AS_NNUNET, NONE, Work
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.host import cpu_budget

# Four abdominal CTs as they come from a scanner; what a worker keeps at hand while it cuts patches.
# Eight multi-channel brains: the work per patch grows with the channels, the warp's arithmetic does not.
_SETS = (
    PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4),
    PhantomSet(kind="mr", shape=(128, 128, 128), num_cases=8),
)
_MONAI = ("MONAI CacheDataset", "MONAI", "copy_cache=False, no metadata, ")


@dataclass(frozen=True, kw_only=True)
class PatchScenario:
    """A training without augmentation: what is left is copying boxes of stored voxels into batches of float32."""

    sets: tuple[PhantomSet, ...] = _SETS
    patch: Index3 = (96, 96, 96)
    batch_size: int = 4
    # Of each side in a round: about half a second.
    num_batches: int = 100
    num_peer_batches: int = 40
    workers: tuple[int, ...] = (0, 2)
    repeats: int = 9


@dataclass(frozen=True, kw_only=True)
class TransformScenario:
    """A training that waits for its augmentation: every patch is moved, flipped, scaled, shifted and made noisy."""

    sets: tuple[PhantomSet, ...] = _SETS
    # The patch of MONAI's spleen tutorial, and of many networks on a 16 GB card.
    patch: Index3 = (96, 96, 96)
    batch_size: int = 2
    # Of each side in a round; ours has more, or a round of it would last a fraction of a second.
    num_batches: int = 24
    num_peer_batches: int = 6
    # nnU-Net's patch for CT on a 24 GB card, augmented one by one as its workers do.
    nnunet_patch: Index3 = (128, 128, 128)
    # Half of its changes are drawn for one sample in five or fewer: means of a few samples say little.
    num_nnunet_samples: int = 40
    # Settings of MONAI's and TorchIO's loaders to choose the best of.
    workers: tuple[int, ...] = (0, 2)
    repeats: int = 5


@dataclass(frozen=True, kw_only=True)
class FeedScenario:
    """A machine whose accelerators are faster than its cores: how many batches a second can it make?"""

    # In memory, so that nothing but the feed is measured.
    cases: PhantomSet = _SETS[0]
    # MLPerf's 3-D U-Net trains on patches of this size, seven at a time.
    patch: Index3 = (128, 128, 128)
    batch_size: int = 7
    num_batches: int = 12
    # Two workers finish two batches at about the same time: an even number, and enough that the first matters little.
    num_peer_batches: int = 6
    workers: tuple[int, ...] = (cpu_budget(),)
    repeats: int = 5


def _sides(
    scenario: PatchScenario | TransformScenario | FeedScenario,
    work: Work,
    chain: str,
    augment: AugmentConfig,
    peers: Sequence[tuple[str, str, str]],
    *,
    per_batch: int,
) -> list[BenchSide]:
    """Rates of ours and of peers (name, peer and note), each at its best setting; a batch counts for `per_batch`."""
    theirs = functools.partial(best_side, num_batches=scenario.num_peer_batches, per_batch=per_batch)
    return [
        work.feed_side(augment, scenario.num_batches, per_batch=per_batch),
        *(theirs(name, peer, work, chain, note=note) for name, peer, note in peers),
    ]


def _work(
    scenario: PatchScenario | TransformScenario | FeedScenario, phantoms: PhantomSet, folder: Path, **options: Any
) -> Work:
    sizes = {"patch": scenario.patch, "batch_size": scenario.batch_size, "workers": scenario.workers}
    return Work.of(phantoms, folder, **sizes, **options)


def run_patches(scenario: PatchScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Patches cut from memory and nothing else, against MONAI and against the memory itself."""
    per_batch = scenario.batch_size
    num_copied = scenario.num_batches * per_batch
    for phantoms in scenario.sets:
        work = _work(scenario, phantoms, folders.work)
        copy = functools.partial(copies_per_s, work.volumes, scenario.patch, num_copied, num_threads=cpu_budget())
        yield compare(
            f"{_shape(scenario.patch)} patches cut from memory, {phantoms.words}",
            "patches/s",
            [
                *_sides(scenario, work, "crop", NONE, [_MONAI], per_batch=per_batch),
                BenchSide(
                    name=f"plain copy and cast ({cpu_budget()} threads)",
                    once=copy,
                    note="the same boxes into the same two arrays repeatedly: the limit of the memory",
                ),
            ],
            repeats=scenario.repeats,
            note=(
                "image to float32 and label to uint8; against the plain copy, the last column is the share of its rate"
            ),
        )


def run_feed(scenario: FeedScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Batches a second for a consumer that does nothing else, made from cases in memory."""
    nnunet = ("nnU-Net v2's loader, Blosc2 files", "nnU-Net", "")
    generators = ("batchgeneratorsv2 in torch's DataLoader, cases in memory", "batchgeneratorsv2", "")
    chains = (
        ("crop", "crop only", NONE, [_MONAI, nnunet]),
        ("affine", "affine, flips, scale, shift, noise", AS_MONAI, [_MONAI]),
        ("nnU-Net", "nnU-Net's default augmentation", AS_NNUNET, [nnunet, generators]),
    )
    with tempfile.TemporaryDirectory(prefix="feed-", dir=folders.work) as name:
        work = _work(scenario, scenario.cases, folders.work, place=Path(name))
        # Made chain by chain, so that what a peer keeps is released before the next.
        for chain, words, augment, peers in chains:
            what = f"{scenario.batch_size} patches of {_shape(scenario.patch)}, {words}"
            yield compare(
                f"batches of {what}, {scenario.cases.words} in memory",
                "batches/s",
                _sides(scenario, work, chain, augment, peers, per_batch=1),
                repeats=scenario.repeats,
                # Each stream's first batch is its warm-up.
                warmup=0,
                note="a consumer that does nothing else",
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


def run_transforms(scenario: TransformScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Augmented patches per second from memory, on each device, and nnU-Net's augmentation in CPU time."""
    peers = (_MONAI, ("torch: one grid_sample a batch", "torch", ""))
    torchio = ("TorchIO", "TorchIO", f"{versions()['torchio']}, without scale and shift, ")
    for phantoms in scenario.sets:
        work = _work(scenario, phantoms, folders.work)
        yield _augmented(scenario, work, (*peers, torchio))
        if phantoms.kind == "ct":
            yield _nnunet_cpu_ms(scenario, work)
        if torch.cuda.is_available():
            # Worker processes hand over no tensors of a GPU.
            yield _augmented(scenario, replace(work, device="cuda", workers=(0,)), peers)


def _augmented(scenario: TransformScenario, work: Work, peers: Sequence[tuple[str, str, str]]) -> Comparison:
    where = "memory" if work.device == "cpu" else f"memory, augmented on {torch.cuda.get_device_name()}"
    return compare(
        f"augmented {_shape(scenario.patch)} patches from {where}, {work.phantoms.words}",
        "patches/s",
        _sides(scenario, work, "affine", AS_MONAI, peers, per_batch=scenario.batch_size),
        repeats=scenario.repeats,
        note="image and label: crop, affine of every patch, three flips, scale, shift, noise",
    )


def _nnunet_cpu_ms(scenario: TransformScenario, work: Work) -> Comparison:
    patch, num_samples = scenario.nnunet_patch, scenario.num_nnunet_samples
    with _one_thread():
        return compare(
            f"nnU-Net's default augmentation, {_shape(patch)}, {work.phantoms.words}",
            "CPU-ms a sample",
            [
                BenchSide(
                    name="Voxelocity (one thread)",
                    once=_our_cpu_ms(work.volumes, patch, num_samples),
                    note="from the volume as stored (int16), the read included",
                ),
                peer_side(
                    *("batchgeneratorsv2", "batchgeneratorsv2"),
                    lambda: _batchgenerators_cpu_ms(work.volumes, patch, num_samples),
                    note="from a float32 patch of 1.6 times the side, its cut from the case not counted",
                ),
            ],
            repeats=scenario.repeats,
            note="one thread each, process CPU time, means over samples of all kinds; labels as interpolated classes",
        )


def _our_cpu_ms(volumes: Sequence[Volume], patch: Index3, num_samples: int) -> Once:
    num_channels = volumes[0].spec.num_channels
    image, label = torch.empty((1, num_channels, *patch)), torch.empty((1, *patch), dtype=torch.uint8)
    config = PatchConfig(shape_voxel=patch, foreground_share=0.0)
    numbers = itertools.count()

    def fill() -> None:
        number = next(numbers)
        volume = volumes[number % len(volumes)]
        draw = Draw(case_id=volume.case_id, case=number % len(volumes), epoch=number)
        params = sample([draw], seed=0, num_channels=num_channels, patch_shape=patch, config=AS_NNUNET, spacing_mm=None)
        rng = generator(0, stage="patch", epoch=draw.epoch, case=draw.case)
        region = choose_region(volume.grid.shape, volume.foreground, config, rng)
        box = needed_box(params, 0, region, volume.grid.shape)
        stored, classes = volume.read(box)
        assert classes is not None, "phantoms have labels"
        source = Source(image=stored, label=classes, start=box.start, scaling=volume.scaling)
        augment([source], [region], params, image, label)

    def fill_all() -> None:
        for _ in range(num_samples):
            fill()

    return lambda: cpu_ms(fill_all) / num_samples


def _batchgenerators_cpu_ms(volumes: list[Volume], patch: Index3, num_samples: int) -> Once:
    from voxelocity_lab.bench.peers import nnunet

    augmentation = nnunet.default_augmentation(patch)
    patches = nnunet.LoadedPatches(volumes, patch, augmentation)
    numbers = itertools.count()

    def once() -> float:
        spent_ms = 0.0
        for _ in range(num_samples):
            image, label = patches.read(next(numbers) % len(patches))
            with torch.no_grad():
                spent_ms += cpu_ms(functools.partial(augmentation, image=image, segmentation=label))
        return spent_ms / num_samples

    return once


def _shape(patch: Index3) -> str:
    return "x".join(map(str, patch))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Torch's loops on one thread, random numbers as they were before."""
    threads, numpy_state = torch.get_num_threads(), np.random.get_state()  # noqa: NPY002
    torch.set_num_threads(1)
    try:
        # batchgeneratorsv2 draws from NumPy's and torch's global generators.
        np.random.seed(0)  # noqa: NPY002
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(numpy_state)  # noqa: NPY002
