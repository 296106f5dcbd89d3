"""One training of one side, in a process of its own whose start counts: a MONAI script, or `voxelocity train`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from voxelocity.core.learning import unlearned
from voxelocity.data.source import open_cases
from voxelocity.planning import Planned, make_plan
from voxelocity.report import LabeledRun, label_run, read_run
from voxelocity_lab.bench.race.job import Recipe, script_job
from voxelocity_observe.core.environment import environment, python_path
from voxelocity_observe.core.errors import VoxelocityError
from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.spans import phase

SideName = Literal["fast", "plain", "switched", "nnunet", "equal", "float32", "ours"]

LABELS: dict[SideName, str] = {
    "fast": "MONAI, fast recipe",
    "plain": "MONAI, plain script",
    "switched": "MONAI, fast recipe, imports from Voxelocity",
    "nnunet": "nnU-Net's trainer",
    "equal": "Voxelocity, the peers' network",
    "float32": "Voxelocity, float32",
    "ours": "Voxelocity",
}
_OWN: tuple[SideName, ...] = ("equal", "float32", "ours")
OWN_LABELS = frozenset(LABELS[side] for side in _OWN)
IN_FLOAT32: Mapping[str, Any] = {"precision.compute": "float32"}
"""Of the plan of the side "float32"; a race that has it gives it to the peers too."""
# Variables that place what programs keep from run to run outside of the home folder.
_KEPT = frozenset(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "TORCH_HOME"))
_SCRIPT = Path(__file__).with_name("monai_script.py")
_NNUNET_SCRIPT = Path(__file__).with_name("nnunet_script.py")
_MONAIS = "from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, ThreadDataLoader\n"
_OURS = (
    "from monai.data import DataLoader, Dataset, MetaTensor\n"
    "from voxelocity.monai import CacheDataset, ThreadDataLoader\n"
)


@dataclass(frozen=True, kw_only=True)
class Race:
    """What all sides are to do.

    Attributes:
        dataset: to train on, as `voxelocity train` takes it.
        planned: network, patches, augmentation, loss and optimizer of the peers; split and device of all sides.
        out: where each side leaves its files.
        target_dice: mean foreground Dice of the held-out cases that ends a training; 0 for none.
        limit_s: seconds after which a training ends without the target; without a target its whole budget.
        epochs_per_validation: of every side, where there is a target.
        keys: of the plan that `voxelocity train` is given.
        equal_keys: of the plan with which it trains the peers' network with their optimizer, for the side "equal".
        home: a home folder for all processes, with everything that programs keep from run to run; None is the user's.
    """

    dataset: Path
    planned: Planned
    out: Path
    target_dice: float
    limit_s: float
    epochs_per_validation: int = 2
    keys: Mapping[str, Any] = field(default_factory=dict)
    equal_keys: Mapping[str, Any] = field(default_factory=dict)
    home: Path | None = None


def plan_race(
    dataset: Path,
    out: Path,
    *,
    overrides: Mapping[str, Any],
    keys: Mapping[str, Any],
    target_dice: float,
    limit_s: float,
    epochs_per_validation: int = 2,
    **options: Any,
) -> Race:
    """A race whose peers' plan has these `overrides`, and ours these `keys`; `options` are others of `make_plan`.

    The side "equal" has the overrides, too.
    """
    return Race(
        dataset=dataset,
        # Step times of this plan are kept apart: `voxelocity train` must not find them already measured.
        planned=make_plan(open_cases(dataset), overrides=overrides, cache_folder=out / "plan", **options),
        out=out,
        target_dice=target_dice,
        limit_s=limit_s,
        epochs_per_validation=epochs_per_validation,
        keys=keys,
        equal_keys=overrides,
    )


def train_side(side: SideName, race: Race, *, seed: int) -> LabeledRun:
    """Trains one side once.

    Raises:
        VoxelocityError: the training failed; its own message is in the terminal.
    """
    with phase(LABELS[side], color="silver"):
        return _ours(side, race, seed) if side in _OWN else _script(side, race, seed)


def weights_of(side: SideName, race: Race) -> Path:
    """Where the last training of a side left its weights; of nnU-Net, its predictions of the held-out cases."""
    return race.out / (side if side in (*_OWN, "nnunet") else f"{side}.pt")


def with_our_imports(script: str) -> str:
    """The script with the two classes of the fast recipe taken from `voxelocity.monai`, as its users change theirs."""
    assert _MONAIS in script, "the script imports MONAI's data sets in one line"
    return script.replace(_MONAIS, _OURS)


def _script(side: SideName, race: Race, seed: int) -> LabeledRun:
    recipe: Recipe = "plain" if side == "plain" else "fast"
    job = script_job(
        race.planned,
        recipe=recipe,
        target_dice=race.target_dice,
        budget_s=race.limit_s,
        epochs_per_validation=race.epochs_per_validation if race.target_dice else 0,
    )
    files = {name: race.out / f"{side}{name}" for name in (".py", ".job.json", ".json")}
    result = weights_of(side, race)
    for path in (*files.values(), result):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    text = (_NNUNET_SCRIPT if side == "nnunet" else _SCRIPT).read_text()
    files[".py"].write_text(with_our_imports(text) if side == "switched" else text)
    files[".job.json"].write_text(json.dumps(job | {"seed": seed}, indent=1))
    began_unix_s = time.time()
    _call(
        *(files[".py"], files[".job.json"], "--out", files[".json"]),
        *("--predictions" if side == "nnunet" else "--weights", result, "--began", f"{began_unix_s:.3f}"),
        race=race,
    )
    return _labeled(json.loads(files[".json"].read_text()), side)


def _labeled(record: Mapping[str, Any], side: SideName) -> LabeledRun:
    """A record of a script as a run whose clock began when its process was started."""
    spent_s, settings = record["seconds_by_activity"], record["settings"]
    stages = {
        "start-up": spent_s["start"],
        "training steps": spent_s["data"] + spent_s["step"],
        "validation on the way": spent_s["validation"],
    }
    wall_s = record["seconds"]
    steps_of_a_pass = len(settings["training"]) / settings["images_per_batch"]
    return LabeledRun(
        label=LABELS[side],
        unlearned=unlearned(round(record["epochs"] * steps_of_a_pass), steps_of_a_pass=steps_of_a_pass),
        seconds_to_target=record["seconds_to_target"],
        seconds_per_epoch=record["seconds_per_epoch"],
        images_per_s=record["patches_per_second"],
        wall_s=wall_s,
        wait_share=spent_s["data"] / (spent_s["data"] + spent_s["step"]),
        dice_history=tuple((seconds, dice) for seconds, _, dice in record["dice_history"]),
        peak_host_bytes=record["peak_host_bytes"],
        stages=tuple(TimeShare(name=name, seconds=s, share=s / wall_s) for name, s in stages.items()),
        settings=_ways(side, settings),
        machine=environment(),
        notes=("memory of the worker processes is not counted",) if side in ("plain", "nnunet") else (),
    )


def _ways(side: SideName, settings: Mapping[str, Any]) -> dict[str, str]:
    """How a script gets its batches."""
    if side == "nnunet":
        return {
            "scans": "prepared once, in Blosc2 files",
            "feed": "its worker processes",
            "augmentation": "its own, sample by sample in the workers",
            "precision": "float32 on a CPU",
        }
    is_fast = side != "plain"
    return {
        "scans": "prepared once, kept by CacheDataset" if is_fast else "read and prepared again each epoch",
        "feed": "ThreadDataLoader" if is_fast else f"{settings['num_workers']} worker processes",
        "augmentation": f"sample by sample in {'its thread' if is_fast else 'the workers'}",
        "precision": settings["precision"],
    }


def _ours(side: SideName, race: Race, seed: int) -> LabeledRun:
    folder, config, cache = race.out / side, race.out / f"{side}.yaml", race.out / "cache"
    keys = own_keys(replace(race, keys=_keys_of(side, race)))
    # The first run of a new user pays for filling the cache; so does this one.
    shutil.rmtree(cache, ignore_errors=True)
    config.write_text(yaml.safe_dump({**keys, "data.cache.folder": str(cache), "seed": seed}))
    _call(
        *("-m", "voxelocity", "train", race.dataset, "-o", folder, "--fold", race.planned.fold),
        *("--config", config, "--overwrite"),
        race=race,
    )
    facts = read_run(folder)
    num_threads = facts.plan["data"]["feed"]["num_threads"]
    return replace(
        label_run(facts, LABELS[side], target_dice=race.target_dice or None),
        settings={
            "scans": f"prepared once, kept in the {facts.plan['data']['cache']['tier']} cache",
            "feed": "1 thread" if num_threads == 1 else f"{num_threads} threads",
            "augmentation": "in one pass from the cached volume",
            "precision": facts.plan["precision"]["compute"],
        },
        machine=environment(),
    )


def _keys_of(side: SideName, race: Race) -> Mapping[str, Any]:
    if side == "equal":
        return race.equal_keys
    return {**race.keys, **IN_FLOAT32} if side == "float32" else race.keys


def own_keys(race: Race) -> dict[str, Any]:
    """The keys of the plan that `voxelocity train` is given: when to validate and when to end."""
    if not race.target_dice:
        return {**race.keys, "train.time_budget_s": race.limit_s}
    data, split = race.planned.plan.data, race.planned.cases.split(race.planned.fold)
    steps_per_epoch = len(split.training) * data.patch.draws_per_case / data.batch_size
    return {
        **race.keys,
        # All of the held-out ones, as on the other sides.
        "train.validation_cases": 0,
        "train.target_dice": race.target_dice,
        "train.time_budget_s": race.limit_s,
        "train.validate_every_steps": max(1, round(race.epochs_per_validation * steps_per_epoch)),
    }


def _call(*arguments: object, race: Race) -> None:
    words: Sequence[str] = [str(argument) for argument in arguments]
    status = subprocess.run([sys.executable, *words], check=False, env=_environ(race)).returncode
    if status != 0:
        raise VoxelocityError(
            f"bench: 'python {' '.join(words[:4])} ...' ended with status {status}; see its message above"
        )


def _environ(race: Race) -> dict[str, str]:
    """This process's environment, with the device of the plan, and the home for all that is kept from run to run."""
    # Each side takes a GPU where it sees one.
    own = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if race.planned.machine.torch_device.type == "cpu" else {})}
    if race.home is None:
        return own
    own = {name: value for name, value in own.items() if name not in _KEPT and not name.startswith("XDG_")}
    (race.home / "tmp").mkdir(parents=True, exist_ok=True)
    return {**own, "HOME": str(race.home), "TMPDIR": str(race.home / "tmp"), "PYTHONPATH": python_path()}
