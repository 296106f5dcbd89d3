"""E9: how fast batches are augmented, with variants of the kernels, and what a batch costs the host.

Device time is that of everything `augment` launches; the host's part is hidden behind a queue of copies. Bytes are
those of the batch that is written and of the boxes that are read, each counted once.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gpu.experiment import Experiment, Row, Setting, device_ms
from gpu.steps import resident_sources, resident_volume
from voxelocity.core.batch import Draw
from voxelocity.core.region import Region
from voxelocity.data.augment import AugmentConfig, AugmentParams, ResidentSource, augment, sample
from voxelocity.data.cache.device import DeviceVolume

SIDE, BATCH = 128, 4
_STILL = AugmentConfig.only(flip_probability=(0.5, 0.5, 0.5))
_AFFINE = _STILL.model_copy(update={"affine_probability": 1.0, "rotation_share": 1.0, "scale_share": 1.0})
SCENARIOS = {
    "crop and flip": _STILL,
    "affine": _AFFINE,
    "affine, voted": _AFFINE.model_copy(update={"label_interpolation": "vote"}),
    "affine and elastic": _AFFINE.model_copy(update={"elastic_probability": 1.0}),
    "nnU-Net's defaults": AugmentConfig(),
    "contrast and gamma": AugmentConfig.only(contrast_probability=1.0, gamma_probability=1.0),
}
GOALS_MS = {"crop and flip": 0.035, "affine": 0.066, "affine, voted": 0.100, "nnU-Net's defaults": 0.120}
"""On an H100, for 4 patches of 128 cubed; 0.108, 0.234, 0.475 and 0.296 before."""
_TILES = {
    (16, 8, 32): 8,
    (8, 8, 16): 4,
    (8, 4, 32): 4,
    (16, 4, 32): 4,
    (8, 16, 32): 8,
    (16, 1, 32): 1,
}
"""`TILE` of the gather, and its warps."""
_CROPS = ((8, 1024, 4), (2, 1024, 4), (4, 2048, 8), (4, 512, 4), (16, 512, 4), (1, 4096, 8))
"""Planes, block and warps of the crop."""
_PARTS = ((2048, 8), (8192, 8), (16384, 8), (4096, 4))
"""Voxels of a part of a sum, and warps."""


@dataclass(frozen=True)
class Work:
    """A batch to fill, again and again."""

    sources: Sequence[ResidentSource]
    regions: Sequence[Region]
    params: AugmentParams
    image: torch.Tensor
    label: torch.Tensor

    def fill(self) -> None:
        """Augments it on the current stream."""
        is_triton = self.image.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
        augment(
            self.sources, self.regions, self.params, self.image, self.label, engine="triton" if is_triton else "torch"
        )

    @property
    def num_bytes(self) -> int:
        """Read and written."""
        voxels = sum(math.prod(source.box.shape) for source in self.sources)
        return voxels * 3 + self.image.nbytes + self.label.nbytes


def run(setting: Setting) -> None:
    """The scenarios, then variants of each kernel, compiled in threads beforehand."""
    side = 8 if setting.is_tiny else SIDE
    if setting.is_cuda:
        # What is not compiled yet is compiled when it is launched.
        with setting.guard("compiling", what="all kernels"):
            _compile_everything(setting)
    _report_scenarios(setting, side)
    setting.report("host", _host(setting, (8, 8, 8) if setting.is_tiny else (32, 48, 32)))
    if setting.is_cuda:
        _report_variants(setting)


def _report_scenarios(setting: Setting, side: int) -> None:
    """A row for each: 4 patches of `side` cubed from a resident int16 volume, and the speed of a copy."""
    volume = resident_volume(setting.device, side)
    busy, copy_bytes_per_s = _copies(setting)
    for name, config in SCENARIOS.items():
        with setting.guard("augmentation", what=name):
            work = _work(volume, config, side)
            row = {"what": name, **device_ms(work.fill, setting, queue=busy)}
            row |= {"goal_ms": GOALS_MS[name]} if side == SIDE and name in GOALS_MS else {}
            rate = 1e3 * work.num_bytes / row["ms"]
            row |= {"patches_per_s": 1e3 * BATCH / row["ms"], "gb_per_s": rate / 1e9}
            row |= {"copy_gb_per_s": copy_bytes_per_s / 1e9, "share_of_copy_speed": rate / copy_bytes_per_s}
            setting.report("augmentation", row)


def _variants() -> list[tuple[str, str, dict[tuple[Any, str], Any]]]:
    """The scenario, the name and the constants of each; those in use first."""
    from voxelocity.data.augment import triton_crop, triton_engine, triton_warp

    tried: list[tuple[str, str, dict[tuple[Any, str], Any]]] = []
    for tile, warps in {triton_warp.TILE: triton_engine.GATHER_WARPS, **_TILES}.items():
        values = {(triton_warp, "TILE"): tile, (triton_engine, "GATHER_WARPS"): warps}
        tried += [(name, f"tile {tile}, {warps} warps", values) for name in ("affine", "affine, voted")]
    for planes, block, warps in ((4, 1024, 4), *_CROPS):
        names = ("CROP_PLANES", "CROP_BLOCK", "CROP_WARPS")
        values = {(triton_crop, name): value for name, value in zip(names, (planes, block, warps), strict=True)}
        tried.append(("crop and flip", f"{planes} planes of {block}, {warps} warps", values))
    for voxels, warps in ((4096, 8), *_PARTS):
        values = {(triton_engine, "_VOXELS_PER_PART"): voxels, (triton_engine, "SUMMING_WARPS"): warps}
        tried.append(("contrast and gamma", f"{voxels} voxels a part, {warps} warps", values))
    return tried


def _compile_everything(setting: Setting) -> None:
    """All kernels that are timed, in eight threads."""
    from voxelocity.core.kernels import compile_one, distinct, record_launches

    volume = resident_volume(setting.device, SIDE)
    works = {name: _work(volume, config, SIDE) for name, config in SCENARIOS.items()}
    launches = []
    for name, _, values in [*((name, "", {}) for name in works), *_variants()]:
        with _replaced(values), record_launches(runs=False) as some:
            works[name].fill()
        launches += some
    todo = distinct(launches)
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        failed = [
            future.exception() for future in [pool.submit(compile_one, launch, setting.device) for launch in todo]
        ]
    row: Row = {"what": f"{len(todo)} kernels in 8 threads", "seconds": time.perf_counter() - begin_s}
    errors = [repr(error)[:200] for error in failed if error is not None]
    setting.report("compiling", row | ({"error": "; ".join(errors)[:600]} if errors else {}))


def _report_variants(setting: Setting) -> None:
    volume = resident_volume(setting.device, SIDE)
    works = {name: _work(volume, config, SIDE) for name, config in SCENARIOS.items()}
    busy, copy_bytes_per_s = _copies(setting)
    for name, what, values in _variants():
        row: Row = {"what": name, "variant": what}
        with setting.guard("variants", **row), _replaced(values):
            row |= device_ms(works[name].fill, setting, repeats=12, queue=busy)
            share = 1e3 * works[name].num_bytes / row["ms"] / copy_bytes_per_s
            setting.report("variants", row | {"share_of_copy_speed": share})


def _host(setting: Setting, patch: tuple[int, int, int]) -> Row:
    """What a batch of 8 small patches costs the thread that makes it, in milliseconds of its own processor time."""
    volume = resident_volume(setting.device, 2 * max(patch))
    config = AugmentConfig.only(
        flip_probability=(0.5, 0.0, 0.0),
        affine_probability=0.7,
        noise_probability=0.1,
        blur_probability=0.2,
        gamma_probability=0.3,
    )
    times: dict[str, list[float]] = {"parameters_ms": [], "boxes_ms": [], "augment_ms": []}
    for step in range(2 if setting.is_tiny else 60):
        begin_s = time.thread_time()
        draws = [Draw(case_id="a", case=case, epoch=step, draw=0) for case in range(8)]
        params = sample(draws, seed=0, num_channels=1, patch_shape=patch, config=config)
        drawn_s = time.thread_time()
        region = Region((2, 2, 2), (2 + patch[0], 2 + patch[1], 2 + patch[2]))
        sources = resident_sources(volume, params, region)
        boxed_s = time.thread_time()
        image = torch.empty((8, 1, *patch), device=setting.device)
        label = torch.empty((8, *patch), dtype=torch.uint8, device=setting.device)
        Work(sources, [region] * 8, params, image, label).fill()
        done_s = time.thread_time()
        for name, spent_s in zip(times, (drawn_s - begin_s, boxed_s - drawn_s, done_s - boxed_s), strict=True):
            times[name].append(spent_s * 1e3)
        setting.synchronize()
    row: Row = {name: statistics.median(values[len(values) // 2 :]) for name, values in times.items()}
    return {"what": "a batch of 8", **row, "all_ms": sum(row.values()), "goal_ms": 0.5}


def _work(volume: DeviceVolume, config: AugmentConfig, side: int) -> Work:
    x, y, z = volume.grid.shape
    start = (x // 4, y // 4, z // 6)
    region = Region(start, (start[0] + side, start[1] + side, start[2] + side))
    draws = [Draw(case_id="a", case=0, epoch=0, draw=draw) for draw in range(BATCH)]
    params = sample(draws, seed=0, num_channels=1, patch_shape=(side,) * 3, config=config)
    image = torch.empty((BATCH, 1, side, side, side), device=volume.memory.device)
    label = torch.empty((BATCH, side, side, side), dtype=torch.uint8, device=volume.memory.device)
    return Work(resident_sources(volume, params, region), [region] * BATCH, params, image, label)


def _copies(setting: Setting) -> tuple[Callable[[], object], float]:
    """Work that keeps the device busy for a few milliseconds, and the bytes a copy moves in a second."""
    source, target = torch.zeros((2, 2**28 if setting.is_cuda else 2**16), dtype=torch.float32, device=setting.device)
    copied_ms = device_ms(lambda: target.copy_(source), setting)["ms"]
    return lambda: [target.copy_(source) for _ in range(8)], 2e3 * source.nbytes / copied_ms


@contextmanager
def _replaced(values: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Other constants of the engine within the block."""
    before = {(module, name): getattr(module, name) for module, name in values}
    try:
        for (module, name), value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


EXPERIMENT = Experiment(
    id="E9",
    question="How near is the augmentation to the speed of a copy, and which tile, warps and parts are best?",
    seconds=40.0,
    run=run,
)
