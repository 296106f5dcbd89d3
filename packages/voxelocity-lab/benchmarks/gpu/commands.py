"""What experiments that run whole commands share: the command under a limit, the device meanwhile, a run's rows."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu.experiment import Row, Setting, end_tree
from harness import VOXELOCITY
from voxelocity.report import LabeledRun, label_run, read_run
from voxelocity_lab.bench.phantom import TINY_KEYS
from voxelocity_lab.bench.race.sides import LABELS, OWN_LABELS, Race, SideName, train_side
from voxelocity_observe.core.events import events_path, read_events
from voxelocity_observe.core.quantities import dotted
from voxelocity_observe.monitor.monitor import Monitor
from voxelocity_observe.monitor.samples import Sample

TINY_PLAN: Mapping[str, Any] = {**TINY_KEYS, "data.prepare.spacing_mm": [6.0, 6.0, 6.0], "data.batch_size": 2}
"""Keys of the plan in a dry run."""
_STDERR_CHARS = 600


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that succeeded.

    Attributes:
        out, err: what it printed.
        seconds: from its start to its end.
        device: `busy_share` and `peak_used_bytes` of the device meanwhile, where it is an NVIDIA GPU.
    """

    out: str
    err: str
    seconds: float
    device: Row


def run_voxelocity(
    setting: Setting, arguments: Sequence[object], limit_s: float, environ: Mapping[str, str] = {}
) -> Ended:
    """Runs `voxelocity`, with all that it starts.

    Raises:
        RuntimeError: it failed or took longer than `limit_s`; with the end of what it printed.
    """
    command = [*VOXELOCITY, *map(str, arguments)]
    out, err = setting.work / "stdout.txt", setting.work / "stderr.txt"
    begin_s = time.monotonic()
    with Monitor(period_s=0.1) as monitor, out.open("w") as written, err.open("w") as complained:
        process = subprocess.Popen(command, stdout=written, stderr=complained, env={**os.environ, **environ})
        try:
            status: int | str = process.wait(max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            status = f"none within {limit_s:.0f} s"
        finally:
            end_tree(process)
    printed = out.read_text(errors="replace"), err.read_text(errors="replace")
    print(f"$ {' '.join(map(str, arguments))}\n{printed[0][-4000:]}\n{printed[1][-4000:]}", flush=True)
    if status != 0:
        raise RuntimeError(f"status {status}: {''.join(printed)[-_STDERR_CHARS:]}")
    return Ended(
        out=printed[0], err=printed[1], seconds=time.monotonic() - begin_s, device=device_row(monitor.record.samples)
    )


def device_row(samples: Sequence[Sample]) -> Row:
    """How busy the first NVIDIA GPU was; empty where there is none."""
    gpus = [sample.gpus[0] for sample in samples if sample.gpus]
    busy = [gpu.busy_share or 0.0 for gpu in gpus]
    if not busy:
        return {}
    # Until the network is built nothing could run on the device.
    first = next((number for number, share in enumerate(busy) if share > 0.0), 0)
    return {
        "busy_share": statistics.fmean(busy),
        "busy_share_since_first": statistics.fmean(busy[first:]),
        "peak_used_bytes": max(gpu.memory_used_bytes or 0 for gpu in gpus),
    }


def report_labeled(setting: Setting, table: str, run: LabeledRun, more: Mapping[str, Any] = {}) -> Row:
    """Reports the figures of a training, and the seconds of its stages in the table "stages"; returns the first."""
    names = ("seconds_to_target", "wall_s", "seconds_per_epoch", "images_per_s", "wait_share", "final_dice")
    row = {
        "what": run.label,
        **{name: getattr(run, name) for name in names if getattr(run, name) is not None},
        **{name: getattr(run, name) for name in ("peak_host_bytes", "peak_device_bytes") if getattr(run, name)},
        **more,
        "curve": " ".join(f"{seconds:.1f}:{dice:.4f}" for seconds, dice in run.dice_history[-40:]),
    }
    setting.report(table, row)
    stages = {stage.name: stage.seconds for stage in run.stages if stage.seconds >= 0.005}
    setting.report("stages", {"what": run.label, **stages})
    if run.step_parts:
        setting.report("steps", {"what": run.label, **{part.name: part.share for part in run.step_parts}})
    return row


def report_run(setting: Setting, table: str, what: str, folder: Path, more: Mapping[str, Any] = {}) -> Row:
    """Reports the figures of a run's folder, its stages, and its plan in the table "plan"; returns the first."""
    facts = read_run(folder)
    events = list(read_events(events_path(folder)))
    finished: dict[str, Any] = next((event for event in events if event["event"] == "run_finished"), {})
    kept: Row = {key: finished[key] for key in ("step", "mean_dice") if key in finished}
    row = report_labeled(setting, table, label_run(facts, what), {**kept, **first_batches(events), **more})
    setting.report("plan", {"what": what, **plain_keys(dotted(facts.plan))})
    return row


def race_side(setting: Setting, side: SideName, race: Race, *, seed: int) -> None:
    """Trains a side of a race once, and reports it in the table "race"; with its plan if it is ours."""
    what = f"{LABELS[side]}, seed {seed}"
    with setting.guard("race", what=what):
        trained = train_side(side, race, seed=seed)
        if trained.label in OWN_LABELS:
            report_run(setting, "race", what, race.out / side, {"seconds_to_target": trained.seconds_to_target})
        else:
            report_labeled(setting, "race", replace(trained, label=what))


def first_batches(events: Sequence[Mapping[str, Any]]) -> Row:
    """Waiting for data in the first of the windows in which losses are read, and in all later ones."""
    windows = [event for event in events if event["event"] == "steps"]
    if len(windows) < 2:
        return {}
    later_s = sum(event["seconds"] for event in windows[1:])
    return {
        "first_steps": windows[0]["num_steps"],
        "first_waited_s": windows[0]["wait_s"],
        "later_wait_share": sum(event["wait_s"] for event in windows[1:]) / max(later_s, 1e-9),
        "later_step_ms": 1e3 * later_s / max(1, sum(event["num_steps"] for event in windows[1:])),
    }


def plain_keys(keys: Mapping[str, Any]) -> Row:
    """Values as numbers and texts; lists as JSON."""
    return {key: value if isinstance(value, int | float | str) else json.dumps(value) for key, value in keys.items()}
