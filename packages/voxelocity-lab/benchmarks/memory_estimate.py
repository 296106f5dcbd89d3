"""What `voxelocity plan --memory` says of twelve settings, and the peaks that are then measured.

Each setting is trained and validated by a fresh process, as a trial of `voxelocity tune` is: one pass over the training
cases through the real feed, then the largest case of the validation. Its host peak is the high-water mark of that
process until the end of the training and of the validation.

python benchmarks/memory_estimate.py                      # all, about five minutes on two cores
python benchmarks/memory_estimate.py --only "batch of 8"  # one; the others are kept
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import voxelocity as vx
from harness import measure_each, real_data
from voxelocity.core.cases import Fold
from voxelocity.core.requests.tune import TuneRequest
from voxelocity.planning.memory_estimate import estimate_memory
from voxelocity.training.library_memory import measure_libraries
from voxelocity.tuning.task import TrialScale, measure_task
from voxelocity.tuning.trial import TrialLimits, run_trial
from voxelocity.tuning.tune import plan_to_tune

HIPPOCAMPUS, OPENKBP, MR = "hippocampus", "openkbp_headneck_ct", "vs_seg_001"
FINE = {"network.stem_stride": [1, 1, 1]}


def levels(*widths: int) -> dict[str, Any]:
    """Keys of a network of these widths at the resolution of the patch."""
    return {**FINE, "network.widths": [*widths], "network.strides": [[2, 2, 2]] * (len(widths) - 1)}


def patch(*shape: int) -> dict[str, Any]:
    return {"data.patch.shape_voxel": [*shape]}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set and the keys in which the plan differs from what the rules say.

    Attributes:
        folder: below the real data.
        fold: that is held out; "all" for a single case.
        window_s: of training steps, long enough for a pass over the cases.
    """

    folder: str = HIPPOCAMPUS
    fold: Fold = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    window_s: float = 4.0


SETTINGS = {
    # What the rules say for two cores.
    "as planned": Setting(),
    "batch of 8": Setting(keys={"data.batch_size": 8}),
    "patch of 64^3": Setting(keys={**patch(64, 64, 64), **levels(8, 32, 64, 128)}),
    "float32, AdamW": Setting(
        keys={**patch(64, 64, 64), **levels(8, 32, 64), "precision.compute": "float32", "optimizer.name": "adamw"}
    ),
    "wide network, average": Setting(
        keys={**patch(32, 32, 32), **levels(32, 128, 320, 320), "optimizer.average_decay": 0.98}
    ),
    "residual units, SGD": Setting(
        keys={**patch(32, 48, 32), **levels(16, 32, 64), "network.num_res_units": 2, "optimizer.name": "sgd"}
    ),
    "UNet, disk": Setting(
        keys={
            **patch(48, 48, 48), **levels(16, 32, 64), "network.name": "unet", "precision.compute": "float32",
            "data.batch_size": 8, "data.cache.tier": "disk",
        }
    ),
    "SegResNet": Setting(
        keys={**patch(48, 48, 48), **levels(8, 16, 32, 64), "network.name": "segresnet", "data.batch_size": 2}
    ),
    # Seven classes in more than a hundred thousand voxels a window.
    "CT, as planned": Setting(folder=OPENKBP),
    "CT, 12 windows": Setting(folder=OPENKBP, keys={"window.batch_size": 12, "data.cache.tier": "none"}),
    "CT, patch of 80^3, Blosc2": Setting(
        folder=OPENKBP,
        keys={**patch(80, 80, 80), **levels(8, 16, 32), "data.cache.tier": "disk", "data.cache.format": "blosc2"},
    ),
    # One scan of 512 x 512 x 120 at its own spacing.
    "MR of 512x512x120": Setting(
        folder=MR, fold="all", keys={"data.prepare.spacing_mm": "keep", **patch(64, 64, 32)}, window_s=1.0
    ),
}  # fmt: skip


def measure(setting: Setting) -> dict[str, Any]:
    """The estimate and the measured peaks of a setting."""
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        work = Path(name)
        planned = plan_to_tune(
            vx.open(real_data() / setting.folder),
            TuneRequest(
                out=work,
                fold=setting.fold,
                overrides={**setting.keys, "planner.measure": "never"},
                cache_folder=work / "cache",
            ),
            base=None,
        )
        estimate = estimate_memory(planned, measure_libraries(planned))
        scale = TrialScale(window_s=setting.window_s, num_windows=1, num_cases=10**6, validation_s=30.0)
        task, answer = measure_task(planned, scale), work / "answer.json"
        task.write(work / "task")
        outcome = run_trial(
            [sys.executable, "-m", "voxelocity.tuning.measure_run", str(work / "task"), str(answer)],
            answer=answer, log=work / "log", limits=TrialLimits(seconds=300.0),
        )  # fmt: skip
    if not outcome.is_finished:
        raise SystemExit(f"{setting}: {outcome.kind}: {outcome.reason}")
    plan = planned.plan
    return {
        "data": setting.folder,
        "keys": dict(setting.keys),
        "patch": plan.data.patch.shape_voxel,
        "batch_size": plan.data.batch_size,
        "outputs": len(planned.cases.class_names),
        "network": plan.network.name,
        "compute": plan.precision.compute,
        "optimizer": plan.optimizer.name,
        "tier": plan.data.cache.tier,
        "windows": plan.window.batch_size,
        "estimate": {"host": estimate.host, "device": estimate.device},
        "estimated": {
            "training": estimate.peak_bytes("host", "preparing", "training"),
            "run": estimate.peak_bytes("host"),
        },
        "measured": {"training": outcome.about["training_host_bytes"], "run": outcome.peak_host_bytes},
        "validated_share": outcome.about["validated_share"],
    }


if __name__ == "__main__":
    measure_each("memory_estimate", __doc__, {name: partial(measure, setting) for name, setting in SETTINGS.items()})
