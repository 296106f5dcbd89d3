"""Every GPU test, the speed of the augmentation's gather, a short training, a diagnosis and a monitor on a GPU, in one
call of a few minutes; prints a table and writes the figures.

    python benchmarks/gpu_check.py [--out FOLDER]

Runs straight from `PYTHONPATH=src` beside a CUDA build of torch. Writes `gpu_check_<device>.json`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import planted_wait
from voxelocity.core.batch import Draw
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.augment import AugmentConfig, ResidentSource, augment, needed_box, sample
from voxelocity.data.cache.device import DeviceTier, DeviceVolume
from voxelocity.monitoring.files import read_monitor
from voxelocity.observe import environment
from voxelocity.recipes.demo.phantom import make_phantoms

ROOT = Path(__file__).resolve().parents[1]


def run_gpu_tests() -> dict[str, Any]:
    """The tests marked `gpu`; one that would be skipped fails."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    print(done.stdout[-3000:])
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-500:]]
    return {"status": done.returncode, "seconds": time.perf_counter() - start, "summary": last[0]}


GATHER_SIDE, GATHER_BATCH = 128, 4
_STILL = AugmentConfig.only(flip_probability=(0.5, 0.5, 0.5))
_AFFINE = _STILL.model_copy(update={"affine_probability": 1.0, "rotation_share": 1.0, "scale_share": 1.0})
SCENARIOS = {
    "crop and flip": _STILL,
    "affine": _AFFINE,
    "affine, voted": _AFFINE.model_copy(update={"label_interpolation": "vote"}),
    "affine and elastic": _AFFINE.model_copy(update={"elastic_probability": 1.0}),
    "nnU-Net's defaults": AugmentConfig(),
}


def time_gather(repeats: int = 20) -> list[dict[str, Any]]:
    """Augmentation of 4 patches of 128 cubed from a resident int16 volume, against the speed of a plain copy.

    Device time of everything that `augment` launches, the host's part hidden behind a queue of copies. The bytes are
    those of the batch that is written and of the boxes that are read, each counted once.
    """
    volume, patch = _resident_volume(), (GATHER_SIDE,) * 3
    start = (volume.grid.shape[0] // 4, volume.grid.shape[1] // 4, volume.grid.shape[2] // 6)
    region = Region(start, (start[0] + GATHER_SIDE, start[1] + GATHER_SIDE, start[2] + GATHER_SIDE))
    draws = [Draw(case_id="a", case=0, epoch=0, draw=draw) for draw in range(GATHER_BATCH)]
    image = torch.empty((GATHER_BATCH, 1, *patch), device="cuda")
    label = torch.empty((GATHER_BATCH, *patch), dtype=torch.uint8, device="cuda")
    source, target = torch.empty((2, 2**28), dtype=torch.float32, device="cuda")
    copy_s = _device_seconds(lambda: target.copy_(source), repeats, queue=lambda: None)
    ceiling = 2 * source.nbytes / copy_s
    rows = []
    for name, config in SCENARIOS.items():
        params = sample(draws, seed=0, num_channels=1, patch_shape=patch, config=config)
        boxes = [needed_box(params, row, region, volume.grid.shape) for row in range(GATHER_BATCH)]
        sources = [ResidentSource(box=volume.locate(b), start=b.start, scaling=volume.scaling) for b in boxes]
        work = functools.partial(augment, sources, [region] * GATHER_BATCH, params, image, label, engine="triton")
        seconds = _device_seconds(work, repeats, queue=lambda: [target.copy_(source) for _ in range(8)])
        num_read = sum(math.prod(box.shape) for box in boxes) * 3
        speed = (num_read + image.nbytes + label.nbytes) / seconds
        rows.append(
            {
                "what": name,
                "ms": seconds * 1e3,
                "patches_per_s": GATHER_BATCH / seconds,
                "gb_per_s": speed / 1e9,
                "copy_gb_per_s": ceiling / 1e9,
                "share_of_copy_speed": speed / ceiling,
            }
        )
    return rows


def _resident_volume() -> DeviceVolume:
    """CT-like: int16 and a label, 3 bytes a voxel, of a scan's size."""
    shape = (256, 256, 192)
    image = np.round(np.random.default_rng(0).normal(0.0, 300.0, size=(1, *shape))).astype(np.int16)
    label = (image[0] > 300).astype(np.uint8)
    grid = Grid.of(image.shape, np.eye(4))
    tier = DeviceTier(2 * image.nbytes)
    tier.put("a", Volume(case_id="a", image=image, label=label, grid=grid, scaling=(Scaling(1.0 / 300.0, 0.0),)))
    kept = tier.get("a")
    assert kept is not None, "it was just put"
    return kept


def _device_seconds(work: Callable[[], object], repeats: int, *, queue: Callable[[], object]) -> float:
    """Median time of the work on the device; `queue` keeps it busy while the host prepares the work."""
    times = []
    for repeat in range(repeats + 5):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        queue()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        if repeat >= 5:
            times.append(float(start.elapsed_time(stop)) / 1e3)
    return statistics.median(times)


def train_on_phantoms(work: Path, device: str, compute: str, steps: int) -> dict[str, Any]:
    """A short training through the command line; what its own facts say."""
    dataset = make_phantoms(work / "phantoms", 8)
    out = work / f"{device}_{compute}"
    arguments = ["train", dataset, "-o", out, "--device", device, "--set", f"train.steps={steps}"]
    arguments += ["--set", f"precision.compute={compute}", "--set", f"data.cache.folder={work / 'cache'}"]
    done = subprocess.run([sys.executable, "-m", "voxelocity", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        return {"device": device, "compute": compute, "status": done.returncode, "error": done.stderr[-500:]}
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    finished = next(event for event in events if event["event"] == "run_finished")
    keys = ("seconds", "images_per_s", "wait_share", "mean_dice", "step")
    return {"device": device, "compute": compute, "status": 0, **{key: finished[key] for key in keys}}


def watch_programs(work: Path) -> list[dict[str, Any]]:
    """A diagnosis of a planted wait of 30 %, and what a monitor saw of the same program."""
    rows = []
    planted = ROOT / "benchmarks" / "slow_scripts" / "planted_wait.py"
    waited, reported = planted_wait.watch(0.3, seconds=10)
    rows.append({"what": "planted wait", "waited": waited, "reported": reported})
    out = work / "monitor"
    command = [sys.executable, "-m", "voxelocity", "monitor", "-o", out, "--", sys.executable, planted]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, "EPOCHS": "20"}
    )  # fmt: skip
    samples = read_monitor(out).samples if done.returncode == 0 else ()
    told = [gpu for sample in samples for gpu in sample.gpus]
    shares = [gpu.busy_share for gpu in told if gpu.busy_share is not None]
    rows.append(
        {
            "what": "monitor",
            "status": done.returncode,
            "samples": len(samples),
            "samples_of_gpus": len(told),
            "highest_busy_share": max(shares, default=None),
            "error": done.stderr[-500:] if done.returncode else "",
        }
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="GPU tests, augmentation and a short training on a GPU.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"gpu_check: torch {torch.__version__} sees no CUDA device; run this where there is one")
    record: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "environment": environment()}
    record["device"] = torch.cuda.get_device_name(0)
    record["tests"] = run_gpu_tests()
    record["augmentation"] = time_gather()
    with tempfile.TemporaryDirectory() as work:
        record["trainings"] = [
            train_on_phantoms(Path(work), "cuda", compute, options.steps) for compute in ("float32", "bfloat16")
        ]
        record["watching"] = watch_programs(Path(work))
    print(f"{record['device']}: tests {record['tests']['summary']}")
    for row in (*record["augmentation"], *record["trainings"], *record["watching"]):
        print(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    options.out.mkdir(parents=True, exist_ok=True)
    name = record["device"].lower().replace(" ", "_")
    (options.out / f"gpu_check_{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
