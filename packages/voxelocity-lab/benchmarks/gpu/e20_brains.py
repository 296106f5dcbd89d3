"""Gliomas at BraTS' size, 240x240x155 in four contrasts, on a GPU: the network, loss and optimizer of MONAI's guide.

Its fast recipe keeps prepared cases on the device. Both sides train the same SegResNet on patches of 128 cubed with
NovoGrad to the same mean Dice of three regions; ours once as they do, and once with its own average and augmentation.
"""

from __future__ import annotations

import time

from gpu.commands import TINY_PLAN, race_side
from gpu.experiment import Experiment, Setting
from voxelocity_lab.bench.race.job import PEER_KEYS
from voxelocity_lab.bench.race.sides import SideName, plan_race
from voxelocity_lab.recipes.brain.phantom import make_brains
from voxelocity_lab.recipes.brain.recipe import CONTEST

_SIDES: tuple[SideName, ...] = ("ours", "fast", "equal")
_KEYS = {"data.patch.shape_voxel": [128, 128, 128], "window.shape_voxel": [128, 128, 128], "data.batch_size": 2}
_TINY = {key: value for key, value in TINY_PLAN.items() if key not in ("network.name", "data.prepare.spacing_mm")}


def run(setting: Setting) -> None:
    """Each side once; `--set E20.cases=20`, `target=0.85`, `limit=300` for more."""
    begin_s = time.monotonic()
    num_cases = int(setting.number("cases", 10, tiny=5))
    dataset = make_brains(setting.work / "phantoms", num_cases, scale=0.1 if setting.is_tiny else 1.0)
    setting.report("made", {"what": f"{num_cases} cases", "seconds": time.monotonic() - begin_s})
    target_dice, limit_s = setting.number("target", 0.8, tiny=0.001), setting.number("limit", 60, tiny=20)
    keys = {**CONTEST.keys, **_KEYS, "train.target_dice": target_dice, **(_TINY if setting.is_tiny else {})}
    (setting.work / "race").mkdir()
    race = plan_race(
        dataset,
        setting.work / "race",
        overrides={**PEER_KEYS, **keys},
        keys=keys,
        target_dice=target_dice,
        limit_s=limit_s,
        device=setting.device.type,
        time_budget_s=limit_s,
    )
    for side in _SIDES:
        race_side(setting, side, race, seed=0)


EXPERIMENT = Experiment(
    id="E20",
    question="Gliomas at BraTS' size to the same Dice with one network: MONAI's fast recipe and ours, how soon?",
    seconds=240.0,
    run=run,
)
