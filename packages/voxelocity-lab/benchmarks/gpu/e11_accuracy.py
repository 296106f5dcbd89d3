"""Accuracy within a short budget: the folds of hippocampus, 90 s of one GPU each, predicted and judged on all cases."""

from __future__ import annotations

import statistics
import time

from gpu.commands import TINY_PLAN, report_run, run_voxelocity
from gpu.experiment import Experiment, Setting
from harness import real_data, sets_of
from voxelocity.report import read_run
from voxelocity_lab.bench.body import make_bodies

_NNUNET_DICE = 0.893
"""nnU-Net's published mean over five folds, after 1,000 epochs each."""


def train_fold(setting: Setting, fold: int, limit_s: float) -> float:
    """The mean Dice of the held-out cases of a fold, as the final validation has it."""
    if setting.is_tiny:
        dataset, budget = make_bodies(setting.work / "phantoms", 4, scale=0.2), list[str]()
        keys = {**TINY_PLAN, "train.steps": 12}
    else:
        seconds = setting.number("budget", 90, tiny=1)
        dataset, keys, budget = real_data() / "hippocampus", {}, ["--time-budget", f"{seconds:g}s"]
    out = setting.work / f"fold{fold}"
    cache = {"data.cache.folder": str(setting.work / "cache")}
    arguments = ["train", dataset, "-o", out, "--fold", str(fold), *budget, *sets_of({**keys, **cache})]
    ended = run_voxelocity(setting, arguments, limit_s)
    scored = [case.mean_dice for case in read_run(out).scores if case.mean_dice is not None]
    more = {"command_s": ended.seconds, "num_scored": len(scored), **ended.device}
    return float(report_run(setting, "folds", f"fold {fold}", out, more)["mean_dice"])


def run(setting: Setting) -> None:
    """Every fold, or the first few: `--set E11.folds=1`, `--set E11.budget=60`."""
    end_s, found = time.monotonic() + setting.limit_s - 3.0, list[float]()
    for fold in range(int(setting.number("folds", 5, tiny=1))):
        with setting.guard("folds", what=f"fold {fold}"):
            found.append(train_fold(setting, fold, end_s - time.monotonic()))
    if found:
        mean = statistics.fmean(found)
        setting.report(
            "mean", {"what": "mean Dice", "mean": mean, "n": len(found), "above_nnunet": mean - _NNUNET_DICE}
        )


EXPERIMENT = Experiment(
    id="E11",
    question="Do 90 s a fold reach nnU-Net's published five-fold mean on hippocampus, 0.893?",
    seconds=500.0,
    run=run,
)
