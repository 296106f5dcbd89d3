"""nnU-Net's own trainer and ours for the same time on hippocampus: steps, Dice, busy share. Needs nnunetv2."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from gpu.commands import device_row, report_labeled, report_run
from gpu.experiment import Experiment, Setting
from harness import real_data
from voxelocity.metrics import summarize
from voxelocity_lab.bench.race.judging import judge
from voxelocity_lab.bench.race.scenario import RaceSettings, make_race
from voxelocity_lab.bench.race.sides import LABELS, SideName, train_side, weights_of
from voxelocity_observe.monitor.monitor import Monitor


def run(setting: Setting) -> None:
    """Both sides for a budget, `--set E16.budget=100`."""
    if importlib.util.find_spec("nnunetv2") is None or setting.is_tiny:
        setting.report("trainings", {"what": "not installed", "error": "nnunetv2 is not installed"})
        return
    out = setting.work / "race"
    out.mkdir()
    budget_s = setting.number("budget", 100, tiny=5)
    race = make_race(RaceSettings(task="hippocampus", budget_s=budget_s), real_data() / "hippocampus", out=out)
    sides: tuple[SideName, ...] = ("ours", "nnunet")
    for side in sides:
        with setting.guard("trainings", what=LABELS[side]):
            with Monitor(period_s=0.1) as monitor:
                trained = train_side(side, race, seed=0)
            dice = summarize(judge(race.planned, weights_of(side, race))).mean_dice
            more = {"judged_dice": dice, **device_row(monitor.record.samples)}
            if side == "ours":
                report_run(setting, "trainings", LABELS[side], race.out / "ours", more)
            else:
                report_labeled(setting, "trainings", replace(trained, label=LABELS[side]), more)


EXPERIMENT = Experiment(
    id="E16",
    question="nnU-Net's own trainer and ours, same cases, same time: seconds of an epoch, busy share, Dice?",
    seconds=240.0,
    run=run,
)
