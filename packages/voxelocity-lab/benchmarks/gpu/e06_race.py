"""The race to hippocampus 0.86: MONAI's fast recipe, its cache on the GPU, and ours, alternating, seed by seed.

Ours runs with what its rules choose, with the peers' network and optimizer ("equal"), and once more with warm caches of
cases and kernels. The first round compiles every kernel, as a new user's first run does.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

from gpu.commands import TINY_PLAN, plain_keys, report_labeled, report_run, run_voxelocity
from gpu.experiment import Experiment, Setting
from harness import real_data
from voxelocity_lab.bench.body import make_bodies
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.bench.race.scenario import RaceSettings, make_race
from voxelocity_lab.bench.race.sides import Race, SideName, plan_race, train_side

_TABLE = "race"


def races_of(setting: Setting) -> tuple[Race, Race]:
    """What the sides are to do, ours by its own rules, and with the peers' network and optimizer."""
    (setting.work / "race").mkdir()
    if not setting.is_tiny:
        settings, out = RaceSettings(task="hippocampus"), setting.work / "race"
        # The same plan of the peers serves both: planning takes seconds.
        own = make_race(settings, real_data() / "hippocampus", out=out)
        return own, replace(own, keys={**own.keys, **PEER_KEYS})
    dataset = make_bodies(setting.work / "phantoms", 4, scale=0.2)
    keys = {**LIMITS, **TINY_PLAN, "train.target_dice": 0.001, "precision.compute": "float32"}
    race = plan_race(
        dataset,
        setting.work / "race",
        overrides={**keys, **PEER_KEYS},
        keys=keys,
        target_dice=0.001,
        limit_s=20.0,
        device="cpu",
    )
    return race, replace(race, keys={**keys, **PEER_KEYS})


def train_once(setting: Setting, what: str, side: SideName, race: Race, seed: int) -> None:
    """One training of one side; its figures, its stages and its plan are reported."""
    run = train_side(side, race, seed=seed)
    if side == "ours":
        report_run(setting, _TABLE, what, race.out / "ours", {"seconds_to_target": run.seconds_to_target})
        return
    report_labeled(setting, _TABLE, replace(run, label=what))
    job = json.loads((race.out / f"{side}.job.json").read_text())
    settings = {key: value for key, value in job.items() if key not in ("training", "held_out")}
    setting.report("plan", {"what": what, **plain_keys(settings)})


def train_warm(setting: Setting, what: str, race: Race) -> None:
    """Ours again as the last time, with the caches of cases, planning and kernels that it left."""
    folder = race.out / "warm"
    arguments = ["train", race.dataset, "-o", folder, "--fold", race.planned.fold, "--config", race.out / "ours.yaml"]
    run_voxelocity(setting, [*arguments, "--overwrite"], race.limit_s)
    report_run(setting, _TABLE, what, folder)


def run(setting: Setting) -> None:
    """Rounds while there is time for another; `--set E6.seeds=1` for one."""
    end_s = time.monotonic() + setting.limit_s - 5.0
    own, equal = races_of(setting)
    # Whatever ran on this machine before, the first training finds nothing compiled and nothing measured.
    for name in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ[name] = str(setting.work / name.lower())
    longest_s = 0.0
    for seed in range(int(setting.number("seeds", 3, tiny=1))):
        heat = "cold" if seed == 0 else "kernels warm"
        trainings: list[tuple[str, SideName | None, Race]] = [
            (f"ours, {heat}", "ours", own), ("fast recipe", "fast", own), ("ours, equal", "ours", equal)
        ]  # fmt: skip
        if seed == 0:
            trainings.insert(1, ("ours, all caches warm", None, own))
        else:
            trainings.reverse()
        for name, side, race in trainings:
            what, begin_s = f"{name}, seed {seed}", time.monotonic()
            with setting.guard(_TABLE, what=what):
                if end_s - begin_s < longest_s:
                    raise TimeoutError("no time was left")
                if side is None:
                    train_warm(setting, what, race)
                else:
                    train_once(setting, what, side, race, seed)
            longest_s = max(longest_s, time.monotonic() - begin_s)


EXPERIMENT = Experiment(
    id="E6",
    question="How long do MONAI's fast recipe and ours take to hippocampus 0.86, and where do the seconds go?",
    seconds=180.0,
    run=run,
)
