"""Every GPU test, the speed of the augmentation's gather and of counting for Dice, short trainings, a diagnosis, a
monitor, a race with MONAI and streamlines on a GPU, in one call of less than eight minutes; prints a short table.

    python benchmarks/gpu_check.py [--out FOLDER] [--only PART ...]

A part that fails or would take too long gets a line of the table, and the others still run. The race and the
streamlines need the real data that $VOXELOCITY_DATA names.

Runs straight from `PYTHONPATH=src` with a CUDA build of torch. Writes `gpu_check_<device>.json`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from harness import ROOT, VOXELOCITY, failures_of, head, parser_of, real_data, run_pytest, write_record
from voxelocity.bench.body import make_bodies
from voxelocity.core.batch import Draw
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.augment import AugmentConfig, ResidentSource, augment, needed_box, sample
from voxelocity.data.cache.device import DeviceTier, DeviceVolume
from voxelocity.metrics.dice import DiceCounts
from voxelocity.monitoring.files import read_monitor
from voxelocity.observe import Clock, events_path, read_events, system_clock

Row = dict[str, Any]
LIMIT_S = 470.0
"""For all parts; machines with a GPU are often lent for ten minutes."""
_EPOCH = re.compile(r"^epoch (\d+): waited ([0-9.]+) of ([0-9.]+) s$", re.MULTILINE)
_TESTS_S, _TRAINING_S, _WATCHING_S, _RACE_S, _STREAMLINES_S = 270.0, 120.0, 90.0, 120.0, 120.0


def run_gpu_tests(limit_s: float) -> list[Row]:
    """The tests marked `gpu`, counted by module; those of runtimes that are not installed are skipped."""
    marked = [str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    # Most of the time goes into compiling kernels.
    has_xdist = importlib.util.find_spec("xdist") is not None
    parallel = ["-n", str(min(12, os.cpu_count() or 1)), "--dist", "worksteal"] if has_xdist else []
    arguments = [*marked, "-m", "gpu", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark", *parallel]
    cases, printed = run_pytest(*arguments, environ={"REQUIRE_GPU": "1"}, timeout=limit_s)
    if cases is None:
        raise RuntimeError(printed[-500:])
    rows = tests_by_module(cases)
    if any(row["failed"] for row in rows):
        print(printed)
    return rows


def tests_by_module(cases: Sequence[ElementTree.Element]) -> list[Row]:
    """How many tests of each module passed, failed and were skipped."""
    rows: dict[str, Row] = {}
    for case in cases:
        name = case.get("classname", "")
        row = rows.setdefault(name, {"what": name, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        row["failed" if failures_of(case) else "passed" if case.find("skipped") is None else "skipped"] += 1
        row["seconds"] += float(case.get("time", 0.0))
    return [rows[name] for name in sorted(rows)]


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


def time_gather() -> list[dict[str, Any]]:
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
    copy_s = _device_seconds(lambda: target.copy_(source), 20)
    ceiling = 2 * source.nbytes / copy_s
    rows = []
    for name, config in SCENARIOS.items():
        params = sample(draws, seed=0, num_channels=1, patch_shape=patch, config=config)
        boxes = [needed_box(params, row, region, volume.grid.shape) for row in range(GATHER_BATCH)]
        sources = [ResidentSource(box=volume.locate(b), start=b.start, scaling=volume.scaling) for b in boxes]
        work = functools.partial(augment, sources, [region] * GATHER_BATCH, params, image, label, engine="triton")
        seconds = _device_seconds(work, 20, queue=lambda: [target.copy_(source) for _ in range(8)])
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


def time_dice() -> list[Row]:
    """Counting the voxels of a large scan, 512 x 512 x 600, for Dice: almost all of them background in both."""
    rows = []
    for num_classes in (2, 14, 104):
        truth = torch.zeros(512 * 512 * 600, dtype=torch.uint8, device="cuda")
        truth[: truth.numel() // 20].random_(num_classes)
        counts = DiceCounts(num_classes)
        seconds = _device_seconds(functools.partial(counts.add, truth, truth), 10)
        rows.append({"what": f"{num_classes} classes", "ms": seconds * 1e3, "voxels_per_s": truth.numel() / seconds})
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


def _device_seconds(work: Callable[[], object], repeats: int, *, queue: Callable[[], object] = lambda: None) -> float:
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


def train_on_phantoms(work: Path, compute: str, steps: int, limit_s: float) -> Row:
    """A short training through the command line, and what its own facts say."""
    dataset, out = work / "phantoms", work / compute
    if not dataset.exists():
        make_bodies(dataset, 8)
    arguments = ["train", dataset, "-o", out, "--device", "cuda", "--set", f"train.steps={steps}"]
    arguments += ["--set", f"precision.compute={compute}", "--set", f"data.cache.folder={work / 'cache'}"]
    run_voxelocity(arguments, limit_s)
    finished = next(event for event in read_events(events_path(out)) if event["event"] == "run_finished")
    keys = ("seconds", "images_per_s", "wait_share", "mean_dice", "step", "peak_device_bytes")
    return {"what": compute, **{key: finished[key] for key in keys if key in finished}}


def watch_programs(work: Path, limit_s: float) -> list[Row]:
    """A diagnosis of a planted wait of 30 %, and what a monitor saw of the same program."""
    program, out = [sys.executable, ROOT / "benchmarks" / "slow_scripts" / "planted_wait.py"], work / "monitor"
    command = ["diagnose", "--json", "--seconds", "10", "-o", work / "diagnosis", "--", *program]
    told, said = run_voxelocity(command, limit_s / 2, {"WAIT_SHARE": "0.3"})
    split = json.loads(told)["split"]
    reported = next((one["share"] for one in split if one["name"] == "waiting for data"), 0.0)
    run_voxelocity(["monitor", "-o", out, "--", *program], limit_s / 2, {"EPOCHS": "20"})
    samples = read_monitor(out).samples
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    shares = [gpu.busy_share for gpu in gpus if gpu.busy_share is not None]
    return [
        {"what": "planted wait", "waited": waited_share(said), "reported": reported},
        {"what": "monitor", "samples_of_gpus": len(gpus), "highest_busy_share": max(shares, default=None)},
    ]


def waited_share(text: str) -> float:
    """The share of its time that the planted program says it waited: the median of its epochs, without the first two.

    The last ones are not watched: the diagnosis runs steps on batches already there.
    """
    return statistics.median(
        float(waited) / float(whole) for number, waited, whole in _EPOCH.findall(text) if int(number) > 2
    )


def race_to_target(work: Path, limit_s: float) -> list[Row]:
    """MONAI's fast recipe, its cache on the GPU, and ours to a Dice of 0.86 on hippocampus, one seed each."""
    arguments = ["bench", "time-to-target", "--task", "hippocampus", "--sides", "fast,ours", "--seeds", "1"]
    run_voxelocity([*arguments, "--work", work / "race", "-o", work / "raced"], limit_s)
    record = json.loads(next((work / "raced").glob("*.json")).read_text())
    return [{"what": side, **flat(run)} for side, runs in record["trainings"].items() for run in runs]


def flat(values: Mapping[str, Any]) -> Row:
    """The numbers and texts of a mapping, those of its mappings with them."""
    row: Row = {}
    for key, value in values.items():
        row.update(
            flat(value) if isinstance(value, dict) else {key: value} if isinstance(value, int | float | str) else {}
        )
    return row


def generate_streamlines(work: Path, limit_s: float) -> list[Row]:
    """The tractography recipe, trained for a quarter of the time, and what it says of the streamlines it makes."""
    data, out = real_data() / "tracts_hcp1065", work / "tracts"
    options = ["--time-budget", f"{limit_s / 4:.0f}s", "--set", "split.held_out=0.5"]
    run_voxelocity(["recipe", "tractography", "both", data, "-o", out, *options], limit_s)
    last = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
    return [{"what": json.loads((out / "scores.json").read_text())["verdict"], **flat(last)}]


def run_voxelocity(arguments: Sequence[object], limit_s: float, environ: Mapping[str, str] = {}) -> tuple[str, str]:
    """What a command printed to stdout and stderr.

    Raises:
        RuntimeError: it failed or took longer than `limit_s`; with the end of what it printed.
    """
    command = [*VOXELOCITY, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            status: int | str = subprocess.run(
                command, stdout=out, stderr=err, timeout=limit_s, env={**os.environ, **environ}
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"none within {limit_s:.0f} s"
        out.seek(0)
        err.seek(0)
        printed = out.read(), err.read()
    if status != 0:
        raise RuntimeError(f"status {status}: {''.join(printed)[-600:]}")
    return printed


def run_parts(
    parts: Mapping[str, tuple[float, Callable[[float], list[Row]]]], clock: Clock, limit_s: float = LIMIT_S
) -> dict[str, list[Row]]:
    """Rows by part. An error becomes the part's row, and a part with no time left is not begun.

    Args:
        parts: by name, the most seconds it may take and what makes its rows in this many.
        clock: returns seconds.
        limit_s: for all parts.
    """
    begin_s, rows = clock(), {}
    for name, (most_s, make) in parts.items():
        left_s = limit_s - (clock() - begin_s)
        start_s = clock()
        try:
            if left_s < min(most_s, 20.0):
                raise TimeoutError(f"no time was left of {limit_s:g} s")
            rows[name] = make(min(most_s, left_s))
        except Exception as error:  # the other parts are still to be run
            rows[name] = [{"what": "failed", "error": f"{type(error).__name__}: {error}"[:700]}]
        print_rows(name, rows[name], clock() - start_s)
    return rows


def print_rows(part: str, rows: list[Row], seconds: float) -> None:
    print(f"{part}  ({seconds:.0f} s)")
    for row in rows:
        told = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        print("  " + "  ".join([str(row["what"]), *told[1:]]), flush=True)


def main() -> None:
    parser = parser_of("GPU tests, benchmarks of kernels and short trainings on a GPU.", out=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all parts")
    parser.add_argument("--only", nargs="+", default=[], help="parts to run, as 'tests' or 'race'")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"gpu_check: torch {torch.__version__} sees no CUDA device; run this where there is one")
    device, record = torch.cuda.get_device_name(), head("gpu_check")
    print(f"{device}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)

        def train(compute: str) -> Callable[[float], list[Row]]:
            return lambda limit_s: [train_on_phantoms(work, compute, options.steps, limit_s)]

        parts: dict[str, tuple[float, Callable[[float], list[Row]]]] = {
            "tests": (_TESTS_S, run_gpu_tests),
            "augmentation": (20.0, lambda limit_s: time_gather()),
            "dice": (10.0, lambda limit_s: time_dice()),
            **{f"training {name}": (_TRAINING_S, train(name)) for name in ("float32", "bfloat16", "float16")},
            "watching": (_WATCHING_S, functools.partial(watch_programs, work)),
            "race": (_RACE_S, functools.partial(race_to_target, work)),
            "streamlines": (_STREAMLINES_S, functools.partial(generate_streamlines, work)),
        }
        chosen = {name: part for name, part in parts.items() if not options.only or name in options.only}
        rows = run_parts(chosen, system_clock, options.limit)
    write_record(record | {"device": device, **rows}, f"gpu_check_{device.lower().replace(' ', '_')}", out=options.out)
    has_failed = any(row.get("error") or row.get("failed") for part in rows.values() for row in part)
    sys.exit("gpu_check: something failed, see above" if has_failed else 0)


if __name__ == "__main__":
    main()
