"""Data sets to race on, each with a target that was set before any race was run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.bench.body.phantom import make_phantoms
from voxelocity.bench.phantom import PhantomSet, phantom_table
from voxelocity.bench.places import Places
from voxelocity.bench.race.job import PEER_KEYS
from voxelocity.core.errors import InputError
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.decode import read_case
from voxelocity.data.decode.write import write_scan
from voxelocity.data.source import open_cases

_ORGANS = ("Brainstem", "SpinalCord", "Mandible")
_BODIES = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=36, spacing_mm=(4.0, 4.0, 5.0))


PHANTOM_KEYS: Mapping[str, Any] = {
    # Coarse, because the phantoms are for machines without a GPU.
    "data.prepare.spacing_mm": [3.0, 3.0, 3.0],
    # The usual abdominal window.
    "data.prepare.intensity": {"mode": "window", "low": -160.0, "high": 240.0},
    "data.patch.shape_voxel": [40, 40, 40],
    "data.patch.draws_per_case": 2,
    "data.patch.foreground_share": 0.5,
    "data.batch_size": 4,
    # No flips: the liver lies on the right.
    "data.augment": AugmentConfig.only(
        affine_probability=0.7,
        rotation_share=1.0,
        rotation_degrees=(15.0, 15.0, 15.0),
        scale_share=1.0,
        scale_range=(0.85, 1.15),
        noise_probability=0.1,
        noise_std_range=(0.0, 0.1),
        intensity_scale_probability=0.15,
        intensity_shift_probability=0.15,
        gamma_probability=0.3,
        gamma_keeps="range",
    ).model_dump(mode="json"),
    "network.name": "unet",
    "network.widths": [16, 32, 64, 128],
    "network.strides": [[2, 2, 2], [2, 2, 2], [2, 2, 2]],
    "network.num_res_units": 0,
    "loss.include_background": True,
    "schedule.warmup_share": 0.0,
    "schedule.decay": "constant",
    "window.overlap": 0.25,
    "window.mirror_axes": [],
}
"""Of the plan on the phantoms, in the demonstration too; the other keys are the rules' to choose."""

PHANTOM_PEER_KEYS: Mapping[str, Any] = {
    **PEER_KEYS,
    "optimizer.learning_rate": 3e-3,
    "optimizer.weight_decay": 1e-4,
}
"""Of the peers' plan there."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set to train on, with its fold 0 held out.

    Attributes:
        words: what it is.
        dataset: makes or finds it below the work folder.
        target_dice: mean foreground Dice that ends a training against time.
        keys: of the plan, equal on all sides.
        peer_keys: of the peers' plan alone.
        epochs_per_validation: of all sides.
    """

    words: str
    dataset: Callable[[Places], Path]
    target_dice: float
    keys: Mapping[str, Any] = field(default_factory=dict)
    peer_keys: Mapping[str, Any] = field(default_factory=lambda: PEER_KEYS)
    epochs_per_validation: int = 2


def _phantoms(places: Places) -> Path:
    return make_phantoms(places.work / "race-phantoms", 22, scale=1.25)


def _hippocampus(places: Places) -> Path:
    return _real(places, "hippocampus")


def _three_organs(places: Places) -> Path:
    """A table of the CTs, with labels that hold three of the seven organs."""
    cases = open_cases(_real(places, "openkbp_headneck_ct"))
    folder = places.work / "race-three-organs"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {cases.class_names.index(name): index for index, name in enumerate(_ORGANS, start=1)}
    rows = []
    for number, ref in enumerate(cases):
        path = folder / f"{ref.case_id}.nii.gz"
        if not path.exists():
            volume = read_case(ref, label_values=cases.label_values)
            assert volume.label is not None, "every case has a label"
            organs = np.zeros_like(volume.label)
            for before, after in kept.items():
                organs[volume.label == before] = after
            write_scan(path, organs, volume.grid)
        rows.append((ref.case_id, ref.images[0].resolve(), path, number % 5))
    table = folder / "three_organs.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("case", "image", "label", "fold"), *rows])
    labels = {"background": 0, **{name: index for index, name in enumerate(_ORGANS, start=1)}}
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "CT"}, "labels": labels}))
    return table


def _bodies(places: Places) -> Path:
    return phantom_table(_BODIES, places.work, places.work / "race-bodies.csv", num_held_out=12)


def _real(places: Places, name: str) -> Path:
    if places.data is None or not (places.data / name).is_dir():
        raise InputError(
            f"bench: this race needs the data set {name}, which is not below {places.data or 'any folder of scans'}; "
            "name the folder that holds it with --data or VOXELOCITY_DATA"
        )
    return places.data / name


TASKS: dict[str, Task] = {
    "phantoms": Task(
        words="22 phantoms of the upper abdomen",
        dataset=_phantoms,
        target_dice=0.88,
        keys=PHANTOM_KEYS,
        peer_keys=PHANTOM_PEER_KEYS,
    ),
    # An epoch takes half a minute on two cores.
    "hippocampus": Task(
        words="MSD's hippocampus, fold 0", dataset=_hippocampus, target_dice=0.86, epochs_per_validation=1
    ),
    "organs": Task(words="three organs of 20 head-and-neck CTs", dataset=_three_organs, target_dice=0.75),
    # No part of the recipe was ever tuned on these.
    "bodies": Task(words=f"{_BODIES.words} with six organs", dataset=_bodies, target_dice=0.85),
}
