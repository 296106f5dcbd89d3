"""A CT at full size, as MSD's spleen: 512x512x90 at 0.8x0.8x5 mm, trained at 1.5x1.5x2 mm on patches of 96 cubed.

Phantoms whose spleen lies among organs of its density, made on the device machine. The benchmark of the recipe: from
MONAI's plain script to ours, one change at a time, to the same Dice; seconds to it, and seconds of an epoch. MONAI's
guide reports 20 times less an epoch and 200 times less to 0.95, which a training of ours reached in 41 s on an A100.
"""

from __future__ import annotations

import time

from gpu.commands import TINY_PLAN, race_side
from gpu.experiment import Experiment, Setting
from voxelocity_lab.bench.race.job import PEER_KEYS
from voxelocity_lab.bench.race.sides import IN_FLOAT32, plan_race
from voxelocity_lab.recipes.spleen.phantom import NUM_CASES, make_spleens
from voxelocity_lab.recipes.spleen.recipe import CONTEST

_KEYS = {
    "data.patch.shape_voxel": [96, 96, 96],
    "data.patch.draws_per_case": 4,
    "data.patch.foreground_share": 0.5,
    "data.batch_size": 8,
    # The organ lies on one side.
    "data.augment.flip_probability": [0.0, 0.0, 0.0],
}


def run(setting: Setting) -> None:
    """Each side once a round; `--set E12.cases=41`, `target=0.95`, `limit=600`, `rounds=3` for all of the guide's."""
    begin_s = time.monotonic()
    num_cases = int(setting.number("cases", 20, tiny=5))
    assert num_cases <= NUM_CASES, "as many as MSD's spleen has"
    scale = setting.number("scale", 1.0, tiny=0.1)
    dataset = make_spleens(setting.work / "phantoms", num_cases, scale=scale)
    setting.report("made", {"what": f"{num_cases} scans", "seconds": time.monotonic() - begin_s})
    target_dice, limit_s = setting.number("target", 0.9, tiny=0.001), setting.number("limit", 60, tiny=20)
    keys = {**CONTEST.keys, **_KEYS, "train.target_dice": target_dice}
    if setting.is_tiny:
        keys |= {**TINY_PLAN, "data.patch.draws_per_case": 2}
    (setting.work / "race").mkdir()
    race = plan_race(
        dataset,
        setting.work / "race",
        overrides={**PEER_KEYS, **keys, **IN_FLOAT32},
        keys=keys,
        target_dice=target_dice,
        limit_s=limit_s,
        device=setting.device.type,
        time_budget_s=limit_s,
    )
    # What may run out of time comes last.
    sides = CONTEST.sides[::-1]
    for seed in range(int(setting.number("rounds", 1, tiny=1))):
        for side in (*sides[seed % len(sides) :], *sides[: seed % len(sides)]):
            race_side(setting, side, race, seed=seed)


EXPERIMENT = Experiment(
    id="E12",
    question="A spleen-like CT at full size to the same Dice, from the plain script to ours, one change at a time?",
    seconds=390.0,
    run=run,
)
