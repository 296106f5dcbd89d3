"""E8: what torch.compile costs before the first step and gains in each, against eager steps with the fused norm.

Each variant runs in a process of its own, which is ended at its limit. A compiled step has torch's norm, which the
compiler writes kernels for itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from gpu.e01_norm import FUSED, Step, in_own_thread
from gpu.experiment import Experiment, Row, Setting, device_ms
from gpu.steps import HIPPOCAMPUS, LARGE, TINY, StepCase
from harness import BENCHMARKS
from voxelocity_observe.core.environment import python_path

_CASES = {case.name: case for case in (HIPPOCAMPUS, LARGE, TINY)}
_LIMIT_S = 60.0
_MARK = "row: "


def variants(*, is_tiny: bool) -> list[tuple[StepCase, str, str]]:
    """Case, mode and the state of the compiler's cache, in the order in which they run."""
    if is_tiny:
        return [(TINY, "eager", ""), (TINY, "aot_eager", "cold")]
    return [
        (HIPPOCAMPUS, "eager", ""),
        (HIPPOCAMPUS, "default", "cold"),
        (HIPPOCAMPUS, "default", "warm"),
        (HIPPOCAMPUS, "reduce-overhead", "warm"),
        (LARGE, "eager", ""),
        (LARGE, "default", "cold"),
    ]


def measure(case: StepCase, mode: str, device: torch.device, *, is_tiny: bool) -> Row:
    """In this process."""
    setting = Setting(device=device, is_tiny=is_tiny, work=Path(), limit_s=_LIMIT_S, report=lambda *_: None)

    def work() -> Row:
        step = Step(case, FUSED, device)
        begin_s = time.perf_counter()
        if mode == "aot_eager":
            step.forward = torch.compile(step.network, backend=mode, dynamic=False)
        elif mode != "eager":
            step.forward = torch.compile(step.network, mode=mode, dynamic=False)
        step()
        setting.synchronize()
        first_s = time.perf_counter() - begin_s
        row = {"first_step_s": first_s, **device_ms(step, setting, repeats=case.repeats, warmup=4)}
        row["patches_per_s"] = 1e3 * case.shape_bxyz[0] / row["ms"]
        row["peak_bytes"] = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        return {**row, "loss": float(step.value)}

    found: Row = in_own_thread(work, FUSED, device)
    return found


def run(setting: Setting) -> None:
    stop_s = time.monotonic() + setting.limit_s - 5.0
    folders = [str(BENCHMARKS), python_path()]
    for case, mode, cache in variants(is_tiny=setting.is_tiny):
        row: Row = {"case": case.name, "mode": mode, "cache": cache}
        left_s = stop_s - time.monotonic()
        if left_s < 10.0:
            setting.report("steps", {**row, "error": "no time left"})
            continue
        limit_s = min(_LIMIT_S, left_s)
        try:
            done = subprocess.run(
                [sys.executable, __file__, case.name, mode, setting.device.type, str(int(setting.is_tiny))],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(folders),
                    "TORCHINDUCTOR_CACHE_DIR": str(setting.work / case.name),
                },
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
            marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
            row |= json.loads(marked[0].removeprefix(_MARK)) if marked else {"error": done.stderr[-300:]}
        except subprocess.TimeoutExpired:
            row["error"] = f"ended after {limit_s:.0f} s"
        setting.report("steps", row)


EXPERIMENT = Experiment(
    id="E8",
    question="torch.compile: seconds to the first step with cold and warm cache, and per step, against eager steps",
    seconds=120.0,
    run=run,
)

if __name__ == "__main__":
    name, mode, device, is_tiny = sys.argv[1:]
    print(_MARK + json.dumps(measure(_CASES[name], mode, torch.device(device), is_tiny=is_tiny == "1")))
