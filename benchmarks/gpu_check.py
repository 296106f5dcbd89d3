"""Every GPU test and a short training on a GPU, in one call of a few minutes; prints a table and writes the figures.

    python benchmarks/gpu_check.py [--out FOLDER]

Runs straight from `PYTHONPATH=src` beside a CUDA build of torch. Writes `gpu_check_<device>.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

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


def main() -> None:
    parser = argparse.ArgumentParser(description="GPU tests and a short GPU training.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"gpu_check: torch {torch.__version__} sees no CUDA device; run this where there is one")
    record: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "environment": environment()}
    record["device"] = torch.cuda.get_device_name(0)
    record["tests"] = run_gpu_tests()
    with tempfile.TemporaryDirectory() as work:
        record["trainings"] = [
            train_on_phantoms(Path(work), "cuda", compute, options.steps) for compute in ("float32", "bfloat16")
        ]
    print(f"{record['device']}: tests {record['tests']['summary']}")
    for row in record["trainings"]:
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
