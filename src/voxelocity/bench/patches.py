"""`voxelocity bench patches` and `transforms`: patches cut from memory, and augmented; nnU-Net's augmentation alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from voxelocity.bench.comparison import BenchSide, Comparison, Once, compare
from voxelocity.bench.peers import best_side, peer_side, versions
from voxelocity.bench.phantom import BenchFolders, PhantomSet
from voxelocity.bench.streams import AS_MONAI, AS_NNUNET, NONE, Work
from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import generator
from voxelocity.core.volume import Volume
from voxelocity.data.augment import Source, augment, needed_box, sample
from voxelocity.data.patch import PatchConfig, choose_region
from voxelocity.observe import Stopwatch, cpu_budget

# Four abdominal CTs as they come from a scanner; what a worker keeps at hand while it cuts patches.
# Eight multi-channel brains: the work per patch grows with the channels, the warp's arithmetic does not.
_SETS = (
    PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4),
    PhantomSet(kind="mr", shape=(128, 128, 128), num_cases=8),
)
_BARE_MONAI = "copy_cache=False, no metadata, "


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


def _work(scenario: PatchScenario | TransformScenario, phantoms: PhantomSet, folders: BenchFolders) -> Work:
    return Work.of(
        phantoms, folders.work, patch=scenario.patch, batch_size=scenario.batch_size, workers=scenario.workers
    )


def _best(
    scenario: PatchScenario | TransformScenario, work: Work, chain: str, name: str, peer: str, note: str = ""
) -> BenchSide:
    num_batches, per_batch = scenario.num_peer_batches, scenario.batch_size
    return best_side(name, peer, work, chain, num_batches, note=note, per_batch=per_batch)


def run_patches(scenario: PatchScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Patches cut from memory and nothing else, against MONAI and against the memory itself."""
    per_batch = scenario.batch_size
    num_copied = scenario.num_batches * per_batch
    for phantoms in scenario.sets:
        work = _work(scenario, phantoms, folders)
        copy = functools.partial(copies_per_s, work.volumes, scenario.patch, num_copied, num_threads=cpu_budget())
        yield compare(
            f"{_shape(scenario.patch)} patches cut from memory, {phantoms.words}",
            "patches/s",
            [
                work.feed_side(NONE, scenario.num_batches, per_batch=per_batch),
                _best(scenario, work, "crop", "MONAI CacheDataset", "MONAI", _BARE_MONAI),
                BenchSide(
                    name=f"plain copy and cast ({cpu_budget()} threads)",
                    once=copy,
                    note="the same boxes into the same two arrays again and again: what the memory allows",
                ),
            ],
            repeats=scenario.repeats,
            note=(
                "image to float32 and label to uint8; against the plain copy, the last column is the share of its rate"
            ),
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
    """Augmented patches per second from memory, and nnU-Net's augmentation in CPU time."""
    for phantoms in scenario.sets:
        work = _work(scenario, phantoms, folders)
        best = functools.partial(_best, scenario, work, "affine")
        yield compare(
            f"augmented {_shape(scenario.patch)} patches from memory, {phantoms.words}",
            "patches/s",
            [
                work.feed_side(AS_MONAI, scenario.num_batches, per_batch=scenario.batch_size),
                best("MONAI CacheDataset", "MONAI", _BARE_MONAI),
                best("torch: one grid_sample a batch", "torch"),
                best("TorchIO", "TorchIO", f"{versions()['torchio']}, without scale and shift, "),
            ],
            repeats=scenario.repeats,
            note="image and label: crop, affine of every patch, three flips, scale, shift, noise",
        )
        if phantoms.kind == "ct":
            yield _nnunet_cpu_ms(scenario, work)


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

    return lambda: _cpu_ms(fill_all) / num_samples


def _batchgenerators_cpu_ms(volumes: list[Volume], patch: Index3, num_samples: int) -> Once:
    from voxelocity.bench.peers import nnunet

    augmentation = nnunet.default_augmentation(patch)
    patches = nnunet.LoadedPatches(volumes, patch, augmentation)
    numbers = itertools.count()

    def once() -> float:
        spent_ms = 0.0
        for _ in range(num_samples):
            image, label = patches.read(next(numbers) % len(patches))
            with torch.no_grad():
                spent_ms += _cpu_ms(functools.partial(augmentation, image=image, segmentation=label))
        return spent_ms / num_samples

    return once


def _cpu_ms(call: Callable[[], object]) -> float:
    start_s = time.process_time()
    call()
    return 1000.0 * (time.process_time() - start_s)


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
