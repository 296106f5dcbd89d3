"""`voxelocity bench transforms`: augmented patches per second from memory, and nnU-Net's augmentation in CPU time."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing, versions
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.bench.stream import OpenStream, batches_per_s, fastest
from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.rng import generator
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.augment import Source, augment, needed_box, sample
from voxelocity.data.patch import PatchConfig, choose_region
from voxelocity.data.pipeline import PreparedCases
from voxelocity.observe import cpu_budget


@dataclass(frozen=True, kw_only=True)
class Transforms:
    """A training that waits for its augmentation: every patch is moved, flipped, scaled, shifted and made noisy."""

    # Four abdominal CTs as they come from a scanner; what a worker keeps at hand while it cuts patches.
    # Eight multi-channel brains: the work per patch grows with the channels, the warp's arithmetic does not.
    sets: tuple[PhantomSet, ...] = (
        PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=4),
        PhantomSet(kind="mr", shape=(128, 128, 128), num_cases=8),
    )
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


def run(scenario: Transforms, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    for phantoms in scenario.sets:
        refs = make_phantoms(phantoms, places.work)
        cases = ours.filled(ours.phantom_cases(refs, phantoms, ours.MEMORY))
        yield _patches_per_s(scenario, phantoms, refs, cases)
        if phantoms.kind == "ct":
            yield _nnunet_cpu_ms(scenario, phantoms, cases)


def _patches_per_s(
    scenario: Transforms, phantoms: PhantomSet, refs: Sequence[VolumeRef], cases: PreparedCases
) -> Comparison:
    patch, batch_size = scenario.patch, scenario.batch_size
    feed = functools.partial(ours.feed_of, cases, patch=patch, batch_size=batch_size, augment=ours.AS_MONAI)
    volumes = [cases[index].load() for index in range(len(cases))]
    sides = [
        _side(scenario, f"Voxelocity Feed ({cpu_budget()} threads)", feed, scenario.num_batches),
        _monai(scenario, phantoms, refs),
        _torch(scenario, volumes),
        _torchio(scenario, volumes),
    ]
    return compare(
        f"augmented {'x'.join(map(str, scenario.patch))} patches from memory, {phantoms.words}",
        "patches/s",
        "larger",
        sides,
        repeats=scenario.repeats,
        note="image and label: crop, affine of every patch, three flips, scale, shift, noise",
    )


def _side(scenario: Transforms, name: str, stream: OpenStream, num_batches: int, note: str = "") -> Side:
    return Side(name=name, once=lambda: scenario.batch_size * batches_per_s(stream, num_batches), note=note)


def _monai(scenario: Transforms, phantoms: PhantomSet, refs: Sequence[VolumeRef]) -> Side:
    name = "MONAI CacheDataset"
    if why := missing("MONAI"):
        return Side(name=name, once=None, note=why)
    from voxelocity.bench import monai_side

    dataset = monai_side.cached(refs, phantoms.kind, monai_side.augmenting(scenario.patch))
    streams = monai_side.loaders(dataset, scenario.batch_size, scenario.workers)
    best, stream = fastest(streams, scenario.num_peer_batches)
    return _side(scenario, name, stream, scenario.num_peer_batches, f"copy_cache=False, no metadata, {best}")


def _torch(scenario: Transforms, volumes: Sequence[Volume]) -> Side:
    from voxelocity.bench import torch_side

    streams = torch_side.loaders(
        volumes, patch=scenario.patch, batch_size=scenario.batch_size, workers=scenario.workers
    )
    best, stream = fastest(streams, scenario.num_peer_batches)
    return _side(scenario, "torch: one grid_sample a batch", stream, scenario.num_peer_batches, best)


def _torchio(scenario: Transforms, volumes: Sequence[Volume]) -> Side:
    name = "TorchIO"
    if why := missing("TorchIO") or missing("MONAI"):
        return Side(name=name, once=None, note=why)
    from voxelocity.bench import monai_side, torchio_side

    dataset = torchio_side.AugmentedPatches(volumes, scenario.patch)
    streams = monai_side.loaders(dataset, scenario.batch_size, scenario.workers)
    if torchio_side.TAKES_BATCHES:
        streams["a whole batch at once"] = functools.partial(torchio_side.batched, dataset, scenario.batch_size)
    best, stream = fastest(streams, scenario.num_peer_batches)
    note = f"{versions()['torchio']}, without scale and shift, {best}"
    return _side(scenario, name, stream, scenario.num_peer_batches, note)


def _nnunet_cpu_ms(scenario: Transforms, phantoms: PhantomSet, cases: PreparedCases) -> Comparison:
    volumes = [cases[index].load() for index in range(len(cases))]
    numbers = itertools.count()
    fill = _our_sample(volumes, scenario.nnunet_patch)
    with _one_thread():
        return compare(
            f"nnU-Net's default augmentation, {'x'.join(map(str, scenario.nnunet_patch))}, {phantoms.words}",
            "CPU-ms a sample",
            "smaller",
            [
                Side(
                    name="Voxelocity (one thread)",
                    once=lambda: _mean_cpu_ms(lambda: fill(next(numbers)), scenario.num_nnunet_samples),
                    note="from the volume as stored (int16), the read included",
                ),
                _batchgenerators(scenario, volumes),
            ],
            repeats=scenario.repeats,
            note="one thread each, process CPU time, means over samples of all kinds; labels as interpolated classes",
        )


def _our_sample(volumes: Sequence[Volume], patch: Index3) -> Callable[[int], None]:
    num_channels = volumes[0].spec.num_channels
    image, label = torch.empty((1, num_channels, *patch)), torch.empty((1, *patch), dtype=torch.uint8)
    config = PatchConfig(shape_voxel=patch, foreground_share=0.0)

    def fill(number: int) -> None:
        volume = volumes[number % len(volumes)]
        draw = Draw(case_id=volume.case_id, case=number % len(volumes), epoch=number)
        params = sample(
            [draw], seed=0, num_channels=num_channels, patch_shape=patch, config=ours.AS_NNUNET, spacing_mm=None
        )
        rng = generator(0, stage="patch", epoch=draw.epoch, case=draw.case)
        region = choose_region(volume.grid.shape, volume.foreground, config, rng)
        box = needed_box(params, 0, region, volume.grid.shape)
        stored, classes = volume.read(box)
        assert classes is not None, "phantoms have labels"
        source = Source(image=stored, label=classes, start=box.start, scaling=volume.scaling)
        augment([source], [region], params, image, label)

    return fill


def _batchgenerators(scenario: Transforms, volumes: Sequence[Volume]) -> Side:
    name = "batchgeneratorsv2"
    if why := missing(name):
        return Side(name=name, once=None, note=why)
    from voxelocity.bench import nnunet_side

    augmentation = nnunet_side.default_augmentation(scenario.nnunet_patch)
    patches = nnunet_side.LoadedPatches(list(volumes), scenario.nnunet_patch, augmentation)
    numbers = itertools.count()

    def once() -> float:
        spent_s = 0.0
        for _ in range(scenario.num_nnunet_samples):
            image, label = patches.read(next(numbers) % len(patches))
            start_s = time.process_time()
            with torch.no_grad():
                augmentation(image=image, segmentation=label)
            spent_s += time.process_time() - start_s
        return 1000.0 * spent_s / scenario.num_nnunet_samples

    return Side(
        name=name, once=once, note="from a float32 patch of 1.6 times the side, its cut from the case not counted"
    )


def _mean_cpu_ms(call: Callable[[], object], times: int) -> float:
    start_s = time.process_time()
    for _ in range(times):
        call()
    return 1000.0 * (time.process_time() - start_s) / times


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
