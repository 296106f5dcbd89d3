"""`voxelocity bench time-to-target`: whole trainings to a target, or within a budget, on one of the `TASKS`."""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.data.augment import AugmentConfig
from voxelocity.data.decode import read_case
from voxelocity.data.decode.write import write_scan
from voxelocity.data.source import open_cases
from voxelocity_lab.bench import body
from voxelocity_lab.bench.comparison import Comparison, Record
from voxelocity_lab.bench.peers import versions
from voxelocity_lab.bench.phantom import SIX_ORGANS, BenchFolders, list_cases, phantom_table, real_data, work_folder
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.bench.race.rounds import Outcome, run_rounds
from voxelocity_lab.bench.race.sides import LABELS, Race, SideName, plan_race
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import InputError, did_you_mean
from voxelocity_observe.core.quantities import duration_text

NAME = "time-to-target"
_SIDES: tuple[SideName, ...] = ("fast", "plain", "switched", "nnunet", "equal", "ours")
# A training that has not reached its target by then is not going to; below the budget at which networks get wider.
_LIMIT_S = 480.0
_ORGANS = ("Brainstem", "SpinalCord", "Mandible")

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
class RaceTask:
    """A data set to train on, with its fold 0 held out, and a target that was set before any race was run.

    Attributes:
        dataset: makes or finds it below the work folder.
        target_dice: mean foreground Dice that ends a training against time.
        keys: of the plan, equal on all sides; `peer_keys` are of the peers' plan alone.
    """

    words: str
    dataset: Callable[[BenchFolders], Path]
    target_dice: float
    keys: Mapping[str, Any] = field(default_factory=dict)
    peer_keys: Mapping[str, Any] = field(default_factory=lambda: PEER_KEYS)
    epochs_per_validation: int = 2


def _real(folders: BenchFolders, name: str) -> Path:
    if folders.data is None or not (folders.data / name).is_dir():
        raise InputError(
            f"bench: this race needs the data set {name}, which is not below {folders.data or 'any folder of scans'}; "
            "name the folder that holds it with --data or VOXELOCITY_DATA"
        )
    return folders.data / name


def _three_organs(folders: BenchFolders) -> Path:
    """A table of the CTs, with labels that hold three of the seven organs."""
    cases = open_cases(_real(folders, "openkbp_headneck_ct"))
    folder = folders.work / "race-three-organs"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {cases.class_names.index(name): index for index, name in enumerate(_ORGANS, start=1)}
    refs = []
    for ref in cases:
        path = folder / f"{ref.case_id}.nii.gz"
        if not path.exists():
            volume = read_case(ref, label_values=cases.label_values)
            assert volume.label is not None, "every case has a label"
            organs = np.zeros_like(volume.label)
            for before, after in kept.items():
                organs[volume.label == before] = after
            write_scan(path, organs, volume.grid)
        refs.append(replace(ref, images=(ref.images[0].resolve(),), label=path))
    table = list_cases(folder / "three_organs.csv", refs, [number % 5 for number in range(len(refs))])
    labels = {"background": 0, **{name: index for index, name in enumerate(_ORGANS, start=1)}}
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "CT"}, "labels": labels}))
    return table


TASKS: dict[str, RaceTask] = {
    "phantoms": RaceTask(
        words="22 phantoms of the upper abdomen",
        dataset=lambda folders: body.make_bodies(folders.work / "race-phantoms", 22, scale=1.25),
        target_dice=0.88,
        keys=PHANTOM_KEYS,
        peer_keys=PHANTOM_PEER_KEYS,
    ),
    # An epoch takes half a minute on two cores.
    "hippocampus": RaceTask(
        words="MSD's hippocampus, fold 0",
        dataset=lambda folders: _real(folders, "hippocampus"),
        target_dice=0.86,
        epochs_per_validation=1,
    ),
    "organs": RaceTask(words="three organs of 20 head-and-neck CTs", dataset=_three_organs, target_dice=0.75),
    "openkbp": RaceTask(
        words="seven organs of 20 head-and-neck CTs",
        dataset=lambda folders: _real(folders, "openkbp_headneck_ct"),
        target_dice=0.7,
        # The parotids have sides, and the scripts cannot swap labels when they flip.
        peer_keys={**PEER_KEYS, "data.augment.flip_probability": [0.0, 0.0, 0.0], "data.augment.swap_pairs": []},
    ),
    # No part of the recipe was ever tuned on these.
    "bodies": RaceTask(
        words=f"{SIX_ORGANS.words} with six organs",
        dataset=lambda folders: phantom_table(
            SIX_ORGANS, folders.work, folders.work / "race-bodies.csv", num_held_out=12
        ),
        target_dice=0.85,
    ),
}


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """What was raced on one of `TASKS`.

    Attributes:
        budget_s: of each training; 0 trains to the target of the task.
        is_equal: whether ours trains the peers' network with their optimizer.
        limit_s: seconds after which a training to the target ends.
        has_homes, within_s: as in `run_rounds`; 0 sets no limit.
    """

    task: str
    num_seeds: int = 5
    budget_s: float = 0.0
    sides: tuple[SideName, ...] = field(default_factory=lambda: check_sides(()))
    is_equal: bool = False
    limit_s: float = _LIMIT_S
    has_homes: bool = False
    within_s: float = 0.0

    @property
    def name(self) -> str:
        """Of files."""
        budget = f"_{duration_text(self.budget_s).replace(' ', '')}" if self.budget_s else ""
        return f"{self.task}{budget}{'_equal' if self.is_equal else ''}{'_cold_warm' if self.has_homes else ''}"

    @property
    def command(self) -> str:
        """That repeats it."""
        budget = f" --time-budget {self.budget_s:g}s" if self.budget_s else ""
        limit = f" --limit {self.limit_s:g}s" if self.limit_s != _LIMIT_S else ""
        within = f" --within {self.within_s:g}s" if self.within_s else ""
        flags = f"{' --equal' if self.is_equal else ''}{' --cold' if self.has_homes else ''}{limit}{within}"
        sides = f"--sides {','.join(self.sides)}"
        return f"voxelocity bench {NAME} --task {self.task}{budget} {sides} --seeds {self.num_seeds}{flags}"


def run_race(
    settings: RaceSettings,
    *,
    work: Path | None = None,
    data: Path | None = None,
    out: Path | None = None,
    keys: dict[str, Any] | None = None,
    on_start: Callable[[str, int], None],
) -> tuple[Record, Outcome]:
    """Trains every side with every seed on a task; `work` and `data` are as in `run_scenario`.

    `out`, if given, holds the record and the page of the results so far after each round. `keys` of the plan replace
    those of the task on all sides. `on_start` is called with the side and the seed before each training.

    Raises:
        InputError: the task is unknown, or its scans are not there.
        OutputError: a folder cannot be written.
        VoxelocityError: a training failed.
    """
    if settings.task not in TASKS:
        hint = did_you_mean(settings.task, TASKS)
        raise InputError(f"bench: unknown task '{settings.task}'{hint}; choose one of {', '.join(TASKS)}")
    folders = BenchFolders(work=work_folder(work), data=real_data(data))
    dataset = TASKS[settings.task].dataset(folders)
    # Before anything is written: results may be files of the repository, which would then differ from the one measured.
    machine = {**environment(), "peers": versions()}
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="race-", dir=folders.work) as folder:
        race = make_race(settings, dataset, out=Path(folder), keys=keys)

        def keep(outcome: Outcome) -> None:
            records[:] = [_record(settings, outcome, machine)]
            if out is not None:
                records[0].write(out)

        outcome = run_rounds(
            race,
            settings.sides,
            range(settings.num_seeds),
            on_start=on_start,
            on_outcome=keep,
            has_homes=settings.has_homes,
            within_s=settings.within_s or math.inf,
        )
    return records[0], outcome


def make_race(settings: RaceSettings, dataset: Path, *, out: Path, keys: Mapping[str, Any] | None = None) -> Race:
    """What all sides are to do on the data of a task; each leaves its files in `out`. `keys` are as in `run_race`."""
    task, own = TASKS[settings.task], keys or {}
    target_dice = 0.0 if settings.budget_s else task.target_dice
    limit_s = settings.budget_s or settings.limit_s
    shared = {**LIMITS, "train.target_dice": target_dice, **task.keys, **own}
    peer_keys = {key: value for key, value in task.peer_keys.items() if key not in own}
    return plan_race(
        dataset,
        out,
        overrides=shared | peer_keys,
        keys=shared | peer_keys if settings.is_equal else shared,
        target_dice=target_dice,
        limit_s=limit_s,
        epochs_per_validation=task.epochs_per_validation,
        time_budget_s=limit_s,
    )


def check_sides(names: Sequence[str]) -> tuple[SideName, ...]:
    """The sides of these names in the order in which pages have them; all that are installed where none is named.

    Raises:
        InputError: a side is unknown, nnU-Net is not installed, or Voxelocity is not among them.
    """
    has_nnunet = importlib.util.find_spec("nnunetv2") is not None
    unknown = [name for name in names if name not in _SIDES]
    if unknown:
        raise InputError(f"bench: unknown side '{unknown[0]}'; choose among {', '.join(_SIDES)}")
    if "nnunet" in names and not has_nnunet:
        raise InputError("bench: the side 'nnunet' needs nnU-Net; install it with pip install nnunetv2")
    if names and ("ours" not in names or len(names) < 2):
        raise InputError(
            f"bench: --sides {','.join(names)}: a race needs 'ours' and another side, as --sides fast,ours"
        )
    usual = [name for name in _SIDES if name != "equal" and (name != "nnunet" or has_nnunet)]
    return tuple(name for name in _SIDES if name in (names or usual))


def _comparisons(outcome: Outcome, words: str) -> list[Comparison | None]:
    cold = [outcome.cold.comparison(f"{words}, in an empty home folder")] if outcome.cold else []
    return [outcome.comparison(words), *cold]


def _record(settings: RaceSettings, outcome: Outcome, machine: Mapping[str, Any]) -> Record:
    task = TASKS[settings.task]
    goal = f"in {duration_text(settings.budget_s)}" if settings.budget_s else f"to a mean Dice of {task.target_dice:g}"
    differing = (
        "Network and optimizer are also the same, and no side averages its weights."
        if settings.is_equal
        else (
            "The peers train with AdamW, Voxelocity with Muon, augmentation that ramps up over the first epochs and, "
            "to a target, a running average of its weights. Where the task does not fix the network, the peers have "
            "nnU-Net's and Voxelocity the one that its rules choose. "
            + (
                f"{LABELS['equal']} trains exactly as the peers do."
                if "equal" in settings.sides
                else "--equal makes all of it the same."
            )
        )
    )
    page = outcome.document(
        title=f"Training {goal}: {task.words}",
        summary=(
            "The same cases, split, loss, patches, batch, augmentation and precision, one training after the other on "
            f"this machine. {differing} Seconds count from the start of each process: imports, planning, caching and "
            "compiling included."
        ),
        command=settings.command,
    )
    plan = outcome.race.planned.plan.to_plain()
    # Of this race alone, and gone when it ends.
    del plan["data"]["cache"]["folder"]
    return Record(
        name=f"race_{settings.name}",
        command=settings.command,
        environment=machine,
        settings=asdict(settings),
        comparisons=tuple(comparison for comparison in _comparisons(outcome, task.words) if comparison is not None),
        details=outcome.to_plain() | {"plan": plan},
        page=page,
    )
