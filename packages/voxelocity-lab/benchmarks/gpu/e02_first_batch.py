"""E2: how soon the first batches come when Triton has compiled nothing yet.

Each group of measurements has a fresh process. Within it, what Triton holds in memory is dropped before each row, and a
row that is "cold" gets an empty folder for its cache on disk, so that only the first row of a process also pays for
what a process loads once (LLVM, the driver's helpers).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpu.experiment import Experiment, Row, Setting
from voxelocity.core import compiling
from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases, compile_kernels
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms

NUM_BATCHES, _NUM_CLASSES = 21, 7
_GROUPS: dict[str, list[dict[str, Any]]] = {
    "when a batch needs them": [
        {"threads": 2, "ahead": False, "disk": "cold"},
        {"threads": 2, "ahead": False, "disk": "warm"},
        {"threads": 8, "ahead": False, "disk": "cold"},
        {"threads": 1, "ahead": False, "disk": "cold"},
    ],
    "ahead": [
        {"threads": 2, "ahead": True, "disk": "cold"},
        {"threads": 2, "ahead": True, "disk": "warm"},
        {"threads": 8, "ahead": True, "disk": "cold"},
        {"threads": 1, "ahead": True, "disk": "cold"},
    ],
}
_CONFIG: dict[str, Any] = {
    "prepare": {"intensity": {"mode": "zscore"}, "spacing_mm": [1.0, 1.0, 1.0], "dtype": "smallest"},
    "cache": {"tier": "memory", "max_bytes": 2**31, "num_cases": 3, "replace_rate": 0.3, "device_max_bytes": 2**28},
    "patch": {"shape_voxel": [32, 48, 32], "foreground_share": 0.5},
    "batch_size": 8,
    "feed": {"num_batches_ahead": 4},
}


def run(setting: Setting) -> None:
    """Starts a process for each group; it prints its rows, one JSON text a line."""
    for name in list(_GROUPS)[: 1 if setting.is_tiny else None]:
        folder = setting.work / name.replace(" ", "_")
        folder.mkdir(parents=True)
        command = [sys.executable, __file__, "--group", name, "--work", str(folder), "--device", setting.device.type]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            [*command, *(["--tiny"] if setting.is_tiny else [])], stdout=subprocess.PIPE, text=True, env=environ
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                row = json.loads(line)
                setting.report(row.pop("table"), row)
        if process.wait() != 0:
            setting.report("first batches", {"what": name, "error": f"the process ended with {process.returncode}"})


def measure(group: str, *, work: Path, device_name: str, is_tiny: bool) -> None:
    """All rows of a group, in this process."""
    device = torch.device(device_name, 0) if device_name == "cuda" else torch.device(device_name)
    begin_s = time.perf_counter()
    if device.type == "cuda":
        torch.zeros(1, device=device)
    _print("first batches", {"what": "the device opened", "seconds": time.perf_counter() - begin_s})
    side = 40 if is_tiny else 96
    refs = make_phantoms(PhantomSet(kind="ct", shape=(side, side, side), num_cases=2 if is_tiny else 6), work)
    cold = itertools.count()
    for way in _GROUPS[group][: 1 if is_tiny else None]:
        what = f"{way['threads']} threads, compiled {group}, disk {way['disk']}"
        if way["disk"] == "cold":
            os.environ["TRITON_CACHE_DIR"] = str(work / f"triton_{next(cold)}")
        try:
            _forget_kernels(device)
            _print("first batches", {"what": what, **way, **_first_batches(refs, way, device)})
        except Exception as error:  # the other rows still count
            _print("first batches", {"what": what, "error": repr(error)[:300]})


def _first_batches(refs: Sequence[VolumeRef], way: dict[str, Any], device: torch.device) -> Row:
    cases, config, spec = _filled_cases(refs, way["threads"], way["ahead"], device)
    begin_s = time.perf_counter()
    row: Row = {}
    if way["ahead"]:
        begun = compile_kernels(
            config, num_channels=spec.num_channels, dtypes=[spec.dtype], class_names=cases.class_names, device=device
        )
        row["begin_ms"] = (time.perf_counter() - begin_s) * 1e3
        seconds = {} if begun is None else begun.result()
        row["compile_s"] = time.perf_counter() - begin_s
        row["kernels"] = len(seconds)
        if way["disk"] == "cold" and way["threads"] == 2:
            for name, spent_s in seconds.items():
                _print("kernels compiled in threads", {"what": name, "seconds": spent_s})
    times = []
    with Feed(cases, config, seed=3, device=device) as feed:
        last_s = start_s = time.perf_counter()
        for _ in range(NUM_BATCHES):
            next(feed)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            now_s = time.perf_counter()
            times.append(now_s - last_s)
            last_s = now_s
        total_s = last_s - start_s
    later = times[1:]
    return row | {
        "batch_0_s": times[0],
        "batches_1_to_20_s": sum(later),
        "slowest_of_these_s": max(later),
        "last_ten_median_ms": statistics.median(times[-10:]) * 1e3,
        "all_s": total_s,
    }


def _filled_cases(refs: Sequence[VolumeRef], threads: int, ahead: bool, device: torch.device) -> tuple[Any, Any, Any]:
    """The cases in the memory tier, the configuration, and what a case is like; on a CPU a tiny one."""
    # Those that a plan chooses by itself for a small MR task, plus a blur, so that eleven kernels are needed.
    augment = AugmentConfig(flip_probability=(0.5, 0.0, 0.0), affine_probability=0.7)
    feed = _CONFIG["feed"] | {"num_threads": threads, "compiles_ahead": ahead}
    chosen = _CONFIG | {"feed": feed, "augment": augment.model_dump()}
    if device.type != "cuda":
        chosen |= {"patch": {"shape_voxel": [8, 8, 8]}, "batch_size": 1}
        chosen["augment"] = AugmentConfig.only(engine="torch").model_dump()
        chosen["cache"] = chosen["cache"] | {"device_max_bytes": 0}
    config = DataConfig.parse(chosen)
    cases = PreparedCases(
        refs,
        class_names=tuple(f"class {value}" for value in range(_NUM_CLASSES)),
        label_values=range(_NUM_CLASSES),
        prepare=config.prepare,
        cache=config.cache,
        warn=lambda text: print(text, file=sys.stderr),
    )
    specs: list[Any] = []
    cases.fill(num_threads=4, on_case=lambda *_: None, should_stop=lambda: False, on_spec=specs.append)
    return cases, config, specs[0]


def _forget_kernels(device: torch.device) -> None:
    """Drops what Triton and we hold in memory of compiled kernels."""
    compiling._begun.clear()
    if device.type != "cuda":
        return
    import triton

    from voxelocity.data.augment import triton_crop, triton_intensity, triton_tone, triton_warp

    for module in (triton_crop, triton_warp, triton_intensity, triton_tone):
        for value in vars(module).values():
            if isinstance(value, triton.JITFunction):
                value.device_caches.clear()


def _print(table: str, row: Row) -> None:
    print(json.dumps({"table": table, **row}), flush=True)


EXPERIMENT = Experiment(
    id="E2",
    question="When do batches 0 to 20 come with an empty Triton cache: 1, 2, 8 threads, compiled ahead or not?",
    seconds=40.0,
    run=run,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", choices=list(_GROUPS), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    measure(options.group, work=options.work, device_name=options.device, is_tiny=options.tiny)
