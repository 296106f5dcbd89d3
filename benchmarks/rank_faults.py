"""What happens to a training on two ranks when one fails: seconds until the job has ended, and what users read.

    python benchmarks/rank_faults.py [--only "kill -9, training" ...] [--out FOLDER]

Each job is `voxelocity launch -n 2 train` on MSD's hippocampus; the fault is planted in rank 1, or in rank 0 if it
writes a checkpoint. Writes `results/rank_faults.json`; rows that were not asked for are kept.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import VOXELOCITY, measure_each, real_data, sets_of

_PLAN: dict[str, Any] = {
    "network.name": "unet",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
    "data.patch.shape_voxel": [16, 16, 16],
    "window.shape_voxel": [16, 16, 16],
    "data.batch_size": 4,
    "precision.compute": "float32",
    "train.steps": 1_000_000,
    "train.validate_every_steps": 60,
    "train.validation_cases": 4,
    "train.checkpoint_every_s": 0.5,
}
_KINDS = {
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "hang": "time.sleep(3600)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "exception": "raise RuntimeError('a planted error')",
    "out of memory": "torch.empty(1 << 50)",
}
# The method that fails, on which rank, and at which of its calls.
_PLACES = {
    "training": ("voxelocity.training.loop", "Loop._one_step", 1, 40),
    "validation": ("voxelocity.training.validation", "Validation.intermediate", 1, 1),
    "checkpointing": ("voxelocity.training.checkpoint", "Checkpoints.save", 0, 2),
}
ROWS = [f"{kind}, {place}" for place in _PLACES for kind in _KINDS]
_MOST_S = 150.0

# Runs at the start of every process, and changes one method of the rank once its module is there.
_PLANTED = """
import os, sys, threading

def plant():
    import time
    module, (owner, name), number = {module!r}, {path!r}, {number}
    while not hasattr(sys.modules.get("voxelocity.training.entry"), "_validate_again"):
        time.sleep(0.005)
    import signal, torch
    cls, calls = getattr(sys.modules[module], owner), [0]
    method = getattr(cls, name)
    def faulty(*arguments, **options):
        calls[0] += 1
        if calls[0] == number:
            with open({at!r}, "w") as file:
                file.write(str(time.time()))
            {fault}
        return method(*arguments, **options)
    setattr(cls, name, faulty)

if os.environ.get("RANK") == "{rank}" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    threading.Thread(target=plant, daemon=True).start()
"""


def measure(row: str) -> dict[str, Any]:
    """Seconds from the fault to the end of the job (None if it was still there after `_MOST_S`), status and message."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(row, Path(folder))


def _measure(row: str, work: Path) -> dict[str, Any]:
    kind, _, place = row.partition(", ")
    module, path, rank, number = _PLACES[place]
    at = work / "at"
    code = _PLANTED.format(
        module=module, path=tuple(path.split(".")), number=number, at=str(at), fault=_KINDS[kind], rank=rank
    )
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text(code)
    plan = {**_PLAN, "data.cache.folder": str(work / "cache")}
    run = work / "run"
    process = subprocess.Popen(
        [*VOXELOCITY, "launch", "-n", "2", "train", str(real_data() / "hippocampus"), "-o", str(run),
         "--device", "cpu", *sets_of(plan)],
        env={**os.environ, "PYTHONPATH": f"{work / 'site'}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while not at.exists() and process.poll() is None:
            time.sleep(0.02)
        try:
            _, said = process.communicate(timeout=_MOST_S)
            seconds: float | None = time.time() - float(at.read_text())
        except subprocess.TimeoutExpired:
            seconds, said = None, ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return {
        "seconds": seconds,
        "status": process.returncode,
        "messages": re.findall(r"^voxelocity: .*", said, re.MULTILINE),
        "num_tracebacks": said.count("Traceback"),
        "whole_checkpoint_step": _last_whole(run / "checkpoints"),
    }


def _last_whole(folder: Path) -> int | None:
    """The step of the newest checkpoint, which must be whole."""
    newest = max(folder.glob("step_*.pt"), default=None)
    return None if newest is None else int(torch.load(newest, weights_only=True)["loop"]["step"])


if __name__ == "__main__":
    measure_each("rank_faults", __doc__, {row: partial(measure, row) for row in ROWS}, {"most_s": _MOST_S})
