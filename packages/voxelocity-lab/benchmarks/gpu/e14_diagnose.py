"""`diagnose` and `monitor` around other people's GPU programs with planted faults: is the cause named, at what cost?

The programs are those of `held_out/` that train on hippocampus: a costly collate function, a network called patch by
patch, a checkpoint after each iteration. Those of `guide_idioms/` are blocking copies from pageable memory and the loss
read in each step, and a network without autocast. And one with a planted share of waiting, which says what it waited.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from diagnose_scripts import CASES, GUIDE_CASES, SCRIPTS, Case, judged
from gpu.commands import run_voxelocity
from gpu.experiment import Experiment, Row, Setting
from voxelocity_observe.monitor.files import read_monitor
from voxelocity_observe.monitor.samples import GPU_FIELDS, Sample

_PROGRAMS = (
    "accelerate_resize", "lightning_sample_by_sample", "monai_workflow_checkpoints", "pageable_copies", "amp_off"
)  # fmt: skip
_EPOCH = re.compile(r"^epoch (\d+): waited ([0-9.]+) of ([0-9.]+) s$", re.MULTILINE)
_PLANTED = 0.3


def diagnose_case(setting: Setting, case: Case, limit_s: float) -> None:
    """Whether the right cause is named, the kernel groups, and what watching cost."""
    if missing := case.missing():
        setting.report("diagnose", {"what": case.name, "error": f"needs {', '.join(missing)}"})
        return
    seconds = setting.number("seconds", 8, tiny=2)
    command = ["diagnose", "--json", "--seconds", f"{seconds:g}", "-o", setting.work / case.name, "--", sys.executable]
    ended = run_voxelocity(setting, [*command, case.script], limit_s)
    plain = json.loads(ended.out)
    found = judged(case, plain)
    row: Row = {
        "what": case.name,
        "is_right": found["is_right"],
        "causes": " ".join(found["causes"]),
        "expected": " ".join(case.codes),
        "verdict": found["verdict"],
        "own_share": found["own_share"],
        "seconds": ended.seconds,
        "not_measured": "; ".join(map(str, plain["not_measured"]))[:200],
    }
    setting.report("diagnose", row)
    setting.report("split", {"what": case.name, **{part["name"]: part["share"] for part in plain["split"]}})
    setting.report("kernels", {"what": case.name, **profile_row(plain["facts"].get("profile"))})


def profile_row(profile: Mapping[str, Any] | None) -> Row:
    """What the profiler saw of the device, by group of kernels."""
    if not profile:
        return {"error": "no profile"}
    wall_ns = max(1, profile["wall_ns"])
    groups = {
        f"{name}: {key}": value
        for name, group in profile["groups"].items()
        for key, value in group.items()
        if isinstance(value, int | float)
    }
    return {
        "busy_share": profile["gpu_busy_ns"] / wall_ns,
        "launch_bound_share": profile["launch_bound_ns"] / wall_ns,
        "tensor_core_share": profile["tensor_core_share"],
        **groups,
    }


def diagnose_wait(setting: Setting, limit_s: float) -> None:
    """The planted share of waiting, what the program itself measured, and what is reported."""
    command = ["diagnose", "--json", "--seconds", f"{setting.number('seconds', 8, tiny=2):g}"]
    command += ["-o", str(setting.work / "planted"), "--", sys.executable, str(SCRIPTS / "planted_wait.py")]
    ended = run_voxelocity(setting, command, limit_s, {"WAIT_SHARE": str(_PLANTED)})
    split = json.loads(ended.out)["split"]
    reported = next((part["share"] for part in split if part["name"] == "waiting for data"), 0.0)
    row = {"planted": _PLANTED, "waited": waited_share(ended.err), "reported": reported}
    setting.report("planted wait", {"what": "diagnose", **row})


def waited_share(text: str) -> float:
    """The share of its time that the planted program says it waited: the median of its epochs, without the first two.

    The last ones are not watched: the diagnosis runs steps on batches already there.
    """
    shares = [float(waited) / float(whole) for number, waited, whole in _EPOCH.findall(text) if int(number) > 2]
    return statistics.median(shares) if shares else float("nan")


def monitor_wait(setting: Setting, limit_s: float) -> None:
    """Seconds of the planted program alone and monitored, and which columns of the device are filled."""
    program, out = [sys.executable, SCRIPTS / "planted_wait.py"], setting.work / "monitor"
    environ = {"EPOCHS": "3" if setting.is_tiny else "400", "WAIT_SHARE": str(_PLANTED)}
    ended = run_voxelocity(setting, ["monitor", "-o", out, "--", *program], limit_s, environ)
    samples = read_monitor(out).samples
    row = {"what": "monitor", "seconds": ended.seconds, "samples": len(samples), **columns_row(samples)}
    setting.report("monitor", {**row, **ended.device})


def columns_row(samples: Sequence[Sample]) -> Row:
    """The highest value of each column of the device; the columns that were never filled."""
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    row: Row = {"samples_of_gpus": len(gpus)}
    for name in GPU_FIELDS:
        values = [value for gpu in gpus if isinstance(value := getattr(gpu, name), int | float)]
        if values:
            row[name] = max(values)
    empty = [name for name in GPU_FIELDS if name not in row]
    return {**row, "never_filled": " ".join(empty)}


def run(setting: Setting) -> None:
    """The programs one after another; in a dry run the planted one alone."""
    end_s = time.monotonic() + setting.limit_s - 3.0
    names = () if setting.is_tiny else _PROGRAMS
    for case in (case for case in (*CASES, *GUIDE_CASES) if case.name in names):
        with setting.guard("diagnose", what=case.name):
            diagnose_case(setting, case, min(60.0, end_s - time.monotonic()))
    for name, measure in (("diagnose", diagnose_wait), ("monitor", monitor_wait)):
        with setting.guard("planted wait", what=name):
            measure(setting, min(60.0, end_s - time.monotonic()))


EXPERIMENT = Experiment(
    id="E14",
    question="Do diagnose and monitor name the planted faults of GPU programs, and what do they cost?",
    seconds=200.0,
    run=run,
)
