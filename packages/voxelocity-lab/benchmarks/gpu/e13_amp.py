"""Number formats: float32, TF32, float16, bfloat16. Speed, memory and Dice of short trainings on phantoms.

MONAI's guide reports 1.11 times the speed and 1,829 instead of 2,892 MB by mixed precision.
"""

from __future__ import annotations

import time
from typing import Any

from gpu.commands import TINY_PLAN, report_run, run_voxelocity
from gpu.experiment import Experiment, Setting
from harness import sets_of
from voxelocity_lab.bench.body import make_bodies

_WAYS: dict[str, dict[str, Any]] = {
    "float32": {"precision.compute": "float32", "backend.tf32": False},
    "TF32": {"precision.compute": "float32", "backend.tf32": True},
    "float16": {"precision.compute": "float16"},
    "bfloat16": {"precision.compute": "bfloat16"},
}
# The same in all ways, whatever a rule would choose for one of them.
_SHARED = {
    "data.patch.shape_voxel": [96, 96, 96],
    "window.shape_voxel": [96, 96, 96],
    "data.batch_size": 4,
    "planner.measure": "never",
}


def run(setting: Setting) -> None:
    """Every way once; `--set E13.steps=200` for longer trainings."""
    end_s = time.monotonic() + setting.limit_s - 3.0
    dataset = make_bodies(
        setting.work / "phantoms", 4 if setting.is_tiny else 10, scale=0.2 if setting.is_tiny else 1.0
    )
    num_steps = int(setting.number("steps", 120, tiny=2))
    ways = ("float32", "bfloat16") if setting.is_tiny else tuple(_WAYS)
    for number, way in enumerate(ways):
        out = setting.work / way
        keys = {**_SHARED, **(TINY_PLAN if setting.is_tiny else {}), **_WAYS[way], "train.steps": num_steps}
        keys["data.cache.folder"] = str(setting.work / "cache")
        device = "cpu" if setting.is_tiny else "cuda"
        with setting.guard("trainings", what=way):
            limit_s = (end_s - time.monotonic()) / (len(ways) - number) * 1.5
            arguments = ["train", dataset, "-o", out, "--device", device, *sets_of(keys)]
            ended = run_voxelocity(setting, arguments, min(limit_s, end_s - time.monotonic()))
            report_run(setting, "trainings", way, out, ended.device)


EXPERIMENT = Experiment(
    id="E13",
    question="float32, TF32, float16, bfloat16: how fast, how much memory, which Dice?",
    seconds=140.0,
    run=run,
)
