"""A CT at full size, as MSD's spleen: 512x512x100 at 0.8x0.8x5 mm, trained at 1.5x1.5x2 mm on patches of 96 cubed.

Phantoms with one organ labeled, made on the device machine. MONAI's plain script, its fast recipe and ours to the same
Dice: seconds to it, and seconds of an epoch. MONAI's guide reports 20 times less an epoch, and 41 s to 0.95 on an A100.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np

from gpu.commands import TINY_PLAN, report_labeled, report_run
from gpu.experiment import Experiment, Setting
from voxelocity.core.volume import Grid, VolumeRef
from voxelocity.data.decode.write import write_scan
from voxelocity_lab.bench.phantom import PhantomSet, list_cases, make_phantoms
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.bench.race.sides import Race, SideName, plan_race, train_side

_ORGAN = 2
"""Of the phantoms' six, the one in the spleen's place; its intensity is that of others."""
_KEYS = {
    "data.prepare.spacing_mm": [1.5, 1.5, 2.0],
    "data.prepare.intensity": {"mode": "window", "low": -57.0, "high": 164.0},
    "data.patch.shape_voxel": [96, 96, 96],
    "data.patch.draws_per_case": 4,
    "data.patch.foreground_share": 0.5,
    "data.batch_size": 8,
    # The organ lies on one side.
    "data.augment.flip_probability": [0.0, 0.0, 0.0],
}


def make_scans(setting: Setting, num_cases: int, num_held_out: int) -> Path:
    """A table of scans in which one organ is labeled; the last ones are held out."""
    shape = (40, 40, 24) if setting.is_tiny else (512, 512, 100)
    spacing_mm = (10.0, 10.0, 20.0) if setting.is_tiny else (0.8, 0.8, 5.0)
    phantoms = PhantomSet(kind="ct", shape=shape, num_cases=num_cases, spacing_mm=spacing_mm, packed=True)
    refs = make_phantoms(phantoms, setting.work / "phantoms")

    def keep_organ(ref: VolumeRef) -> VolumeRef:
        assert ref.label is not None, "phantoms are labeled"
        label, path = nib.load(ref.label), setting.work / f"{ref.case_id}_label.nii.gz"
        voxels = np.asarray(label.dataobj)
        write_scan(path, (voxels == _ORGAN).astype(np.uint8), Grid.of(voxels.shape, label.affine))
        return replace(ref, label=path)

    with ThreadPoolExecutor(4) as pool:
        labeled = list(pool.map(keep_organ, refs))
    folds = [int(index < num_cases - num_held_out) for index in range(num_cases)]
    return list_cases(setting.work / "spleens.csv", labeled, folds)


def race_of(setting: Setting, dataset: Path) -> Race:
    """What the sides are to do."""
    target_dice = setting.number("target", 0.9, tiny=0.001)
    keys = {**LIMITS, **_KEYS, "train.target_dice": target_dice}
    if setting.is_tiny:
        keys |= {**TINY_PLAN, "data.patch.draws_per_case": 2, "precision.compute": "float32"}
    limit_s, out = setting.number("limit", 100, tiny=20), setting.work / "race"
    out.mkdir()
    return plan_race(
        dataset,
        out,
        overrides={**keys, **PEER_KEYS},
        keys=keys,
        target_dice=target_dice,
        limit_s=limit_s,
        device=setting.device.type,
        time_budget_s=limit_s,
    )


def run(setting: Setting) -> None:
    """Each side once; `--set E12.cases=41` for as many scans as MSD's spleen has."""
    begin_s = time.monotonic()
    num_cases = int(setting.number("cases", 20, tiny=3))
    dataset = make_scans(setting, num_cases, max(1, num_cases // 5))
    setting.report("made", {"what": f"{num_cases} scans", "seconds": time.monotonic() - begin_s})
    race = race_of(setting, dataset)
    sides: list[tuple[SideName, Race]] = [("ours", race), ("fast", race)]
    # It reads every scan again each epoch: a few epochs say what one takes.
    sides.append(("plain", replace(race, limit_s=min(60.0, race.limit_s))))
    for side, asked in sides:
        with setting.guard("race", what=side):
            trained = train_side(side, asked, seed=0)
            if side == "ours":
                report_run(setting, "race", side, race.out / side, {"seconds_to_target": trained.seconds_to_target})
            else:
                report_labeled(setting, "race", replace(trained, label=side))


EXPERIMENT = Experiment(
    id="E12",
    question="A spleen-like CT at full size to the same Dice: plain script, fast recipe, ours; seconds of an epoch?",
    seconds=290.0,
    run=run,
)
