"""The recipes as users run them: training and prediction, and what their `benchmark` finds; one record each.

    python benchmarks/recipe.py brain           # phantoms on one rank and on two: equal seeds, equal numbers of steps
    python benchmarks/recipe.py brain_race      # the same phantoms: MONAI's scripts and ours, the same network
    python benchmarks/recipe.py brain_memory    # phantoms of full size: peak memory of MONAI's fast recipe and ours
    python benchmarks/recipe.py spleen [--data Task09_Spleen]    # from the plain script to ours, one change at a time
    python benchmarks/recipe.py tractography
    python benchmarks/recipe.py tractography_image    # the same, the network also sees a T1
    python benchmarks/recipe.py pathology       # cross-validation by tile
    python benchmarks/recipe.py slide           # pathology on a whole slide, each tile by a network of the others

Writes `results/recipe_NAME.json`. `--quick` is the tiniest form, to try the script. Other work on the machine changes
all of them but `brain`.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from harness import VOXELOCITY, head, parser_of, real_data, sets_of, write_record
from voxelocity.core.learning import UNLEARNED
from voxelocity.data.decode import read_header
from voxelocity_lab.bench.phantom import TINY_KEYS
from voxelocity_lab.bench.race.job import PEER_KEYS
from voxelocity_lab.bench.race.sides import LABELS, SideName, plan_race, train_side
from voxelocity_lab.recipes.brain.phantom import make_brains
from voxelocity_lab.recipes.brain.recipe import CONTEST, class_means
from voxelocity_lab.recipes.spleen.phantom import make_spleens
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.events import events_path, read_events

_RACED_BRAIN_KEYS: dict[str, Any] = {
    # A whole brain in coarse voxels, and half the features of the tutorial: steps of a tenth of a second on a CPU.
    "network.widths": [8, 16, 32, 64],
    "data.patch.shape_voxel": [32, 32, 24],
    "window.shape_voxel": [32, 32, 24],
    "data.batch_size": 2,
    "precision.compute": "float32",
    "planner.measure": "never",
}
_BRAIN_KEYS: dict[str, Any] = {
    **_RACED_BRAIN_KEYS,
    "train.steps": 400,
    # Windows of losses end there on any machine.
    "train.validate_every_steps": 50,
}
_LARGE_BRAIN_KEYS: dict[str, Any] = {
    **_RACED_BRAIN_KEYS,
    "network.widths": [16, 32, 64, 128],
    "data.patch.shape_voxel": [96, 96, 96],
    "window.shape_voxel": [96, 96, 96],
    "data.batch_size": 1,
}
_SPLEEN_KEYS: dict[str, Any] = {
    # Coarse, because the phantoms are for machines without a GPU.
    "data.prepare.spacing_mm": [6.0, 6.0, 12.0],
    "data.patch.shape_voxel": [32, 32, 16],
    "data.patch.draws_per_case": 2,
    "data.batch_size": 4,
}
# Each recipe has a network of its own.
_QUICK_NETWORK = {key: value for key, value in TINY_KEYS.items() if key != "network.name"}
_QUICK_STEPS = {"train.steps": 6, "train.validate_every_steps": 3, "data.batch_size": 2}


@dataclass(frozen=True, kw_only=True)
class Task:
    """How a recipe is called.

    Attributes:
        recipe: to call.
        data: folder or file of real data.
        budget: of the training.
        actions: that are called, one after another.
        keys: its settings.
        quick: those that replace some in the tiniest form.
        image: that a network sees, of the real data; none if empty.
    """

    recipe: str
    data: str
    budget: str
    actions: tuple[str, ...] = ("train", "predict", "benchmark")
    keys: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    image: str = ""


_TRACTS = Task(
    recipe="tractography",
    data="tracts_hcp1065/hcp1065_32points.npz",
    # Steps end it, so that other work on the machine does not change what is learned.
    budget="2h",
    # Half against half, as the ceiling of the figures is measured.
    keys={"split.held_out": 0.5, "fit.steps": 900},
    quick={"network.width": 16, "network.depth": 1, "sample.num_steps": 2, "fit.steps": 30},
)
_TASKS = {
    "tractography": _TRACTS,
    "tractography_image": replace(_TRACTS, actions=("train", "predict"), image="tracts_hcp1065/icbm152_t1_2mm.nii.gz"),
    "pathology": Task(
        recipe="pathology",
        data="camelyon_tiles",
        budget="9m",
        actions=("train", "predict"),
        keys={"folds": "all"},
        quick={"folds": [0]},
    ),
    "slide": Task(
        recipe="pathology", data="ocdc_oral_slide", budget="10m", keys={"folds": "all"}, quick={"folds": [0]}
    ),
}


def brain(data: Path, work: Path, quick: bool) -> dict[str, Any]:
    """Dice of each class by both rules on one rank and on two, and how far both trainings differ."""
    keys = _BRAIN_KEYS | (_QUICK_NETWORK | _QUICK_STEPS if quick else {})
    runs = {}
    for size in (1, 2):
        runs[str(size)] = work / f"ranks{size}"
        launch = () if size == 1 else ("launch", "-n", str(size))
        _call(*launch, "recipe", "brain", "train", data, "-o", runs[str(size)], *sets_of(keys), threads=2 // size)
    dice = {size: [case["dice"] for case in _scores(out, quick)["cases"]] for size, out in runs.items()}
    alone, two = (load_file(out / "model.safetensors") for out in runs.values())
    losses, other = (_losses(out) for out in runs.values())
    apart = [(losses[step] - other[step], losses[step]) for step in losses if step in other]
    return {
        "keys": keys,
        "num_cases": len(dice["1"]),
        "classes": {
            size: {name: asdict(mean) for name, mean in class_means(cases).items()} for size, cases in dice.items()
        },
        "losses": {"1": losses, "2": other},
        "largest_difference": {
            "of a loss": max(abs(gap) for gap, _ in apart),
            "of a weight": max(float((alone[name] - two[name]).abs().max()) for name in alone),
            "of a case's Dice": max(
                abs((a[name] or 0.0) - (b[name] or 0.0)) for a, b in zip(*dice.values(), strict=True) for name in a
            ),
        },
        "largest_weight": max(float(weight.abs().max()) for weight in alone.values()),
    }


def _losses(run: Path) -> dict[int, float]:
    """The mean loss up to each step at which losses were read."""
    total, means = 0.0, {}
    for event in read_events(events_path(run)):
        if event["event"] == "steps":
            total += event["loss"] * event["num_steps"]
            means[event["step"]] = total / event["step"]
    return means


@dataclass(frozen=True, kw_only=True)
class RaceCall:
    """How the benchmark of a recipe is called.

    Attributes:
        recipe: to call.
        target_dice: that ends a training.
        limit_s: of each training.
        num_rounds: alternating.
        keys: equal on all sides.
        quick: those that replace some in the tiniest form.
    """

    recipe: str
    target_dice: float
    limit_s: float
    num_rounds: int
    keys: Mapping[str, Any]
    quick: Mapping[str, Any]


def race(task: RaceCall) -> Callable[[Path, Path, bool], dict[str, Any]]:
    """MONAI's scripts and ours to a Dice, alternating."""

    def measure(data: Path, work: Path, quick: bool) -> dict[str, Any]:
        sets = sets_of({**task.keys, **(task.quick if quick else {})})
        words: list[str | Path] = ["recipe", task.recipe, "benchmark", data, "-o", work / "race"]
        words += ["--target", f"{task.target_dice:g}"]
        words += ["--time-budget", "4s" if quick else f"{task.limit_s:g}s"]
        _call(*words, "--seeds", "1" if quick else str(task.num_rounds), *sets)
        return {"keys": task.keys, **_plain(work / "race" / "race.json")}

    return measure


def brain_memory(data: Path, work: Path, quick: bool) -> dict[str, Any]:
    """Peak memory of a training with validation, MONAI's fast recipe and ours, and of our prediction of a case."""
    keys = {**CONTEST.keys, **_LARGE_BRAIN_KEYS, **(_QUICK_NETWORK if quick else {})}
    # Nobody gets there.
    target_dice, limit_s = 0.999, 8.0 if quick else 45.0
    race = plan_race(
        data, work, overrides={**PEER_KEYS, **keys}, keys=keys, target_dice=target_dice, limit_s=limit_s,
        epochs_per_validation=1,
    )  # fmt: skip
    sides: tuple[SideName, ...] = ("fast", "equal")
    split = race.planned.cases.split(race.planned.fold)
    trainings = {LABELS[side]: train_side(side, race, seed=0) for side in sides}
    _call("recipe", "brain", "predict", data, "-o", work / "equal")
    with (work / "equal" / "predictions" / "predictions.csv").open() as file:
        predicted = [int(row["peak_bytes"]) for row in csv.DictReader(file)]
    names = ("peak_host_bytes", "seconds_per_epoch", "wall_s")
    return {
        "keys": keys,
        "shape": list(read_header(race.planned.cases.refs[0].images[0]).grid.shape),
        "num_cases": {"training": len(split.training), "held out": len(split.validation)},
        "trainings": {label: {name: getattr(run, name) for name in names} for label, run in trainings.items()},
        "predicted_peak_bytes": predicted,
    }


def example(task: Task) -> Callable[[Path, Path, bool], dict[str, Any]]:
    """What a recipe scores when it is trained and judged, and what its benchmark then finds."""

    def measure(data: Path, work: Path, quick: bool) -> dict[str, Any]:
        keys = {**task.keys, **(task.quick if quick else {})}
        sets = sets_of({**keys, **({"image": str(real_data() / task.image)} if task.image else {})})
        seconds = {}
        for action in task.actions:
            options = ("--time-budget", "15s" if quick else task.budget, *sets) if action == "train" else ()
            watch = Stopwatch()
            _call("recipe", task.recipe, action, data, "-o", work / "run", *options)
            seconds[action] = watch.elapsed_s
        return {
            "budget": task.budget,
            "keys": keys,
            "image": task.image,
            "seconds": seconds,
            "scores": _scores(work / "run", quick),
            "found": [_plain(path) for path in (work / "run").glob("bench*.json")],
        }

    return measure


def brains(work: Path, quick: bool) -> Path:
    """Gliomas in a fifth of BraTS' resolution, of which some have no enhancing tumor."""
    return make_brains(work / "brains", 5 if quick else 20, scale=0.1 if quick else 0.2)


def large_brains(work: Path, quick: bool) -> Path:
    """Gliomas at BraTS' size."""
    return make_brains(work / "brains", 5, scale=0.1 if quick else 1.0)


def spleens(work: Path, quick: bool) -> Path:
    """Spleens hidden among organs of their density, in about a sixth of a clinical resolution."""
    return make_spleens(work / "Task09_Spleen", 6 if quick else 16, scale=0.1 if quick else 0.15)


_BRAIN_RACE = RaceCall(
    recipe="brain", target_dice=0.6, limit_s=75.0, num_rounds=2, keys=_RACED_BRAIN_KEYS, quick=_QUICK_NETWORK
)
_SPLEEN_RACE = RaceCall(
    recipe="spleen", target_dice=0.6, limit_s=150.0, num_rounds=2, keys=_SPLEEN_KEYS,
    quick={**_QUICK_NETWORK, "network.name": "unet"},
)  # fmt: skip
MEASUREMENTS: dict[str, Callable[[Path, Path, bool], dict[str, Any]]] = {
    "brain": brain,
    "brain_race": race(_BRAIN_RACE),
    "brain_memory": brain_memory,
    "spleen": race(_SPLEEN_RACE),
    **{name: example(task) for name, task in _TASKS.items()},
}
_PHANTOMS = {"brain": brains, "brain_race": brains, "brain_memory": large_brains, "spleen": spleens}


def _call(*arguments: str | Path, threads: int = 0) -> None:
    environ = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    subprocess.run([*VOXELOCITY, *map(str, arguments)], check=True, env=environ)


def _scores(run: Path, quick: bool) -> dict[str, Any]:
    """The scores of a run; only the tiniest form may record those of a network that learned nothing."""
    plain = _plain(run / "scores.json")
    if plain[UNLEARNED] and not quick:
        sys.exit(f"recipe: {run} has no score to record: {plain[UNLEARNED]}")
    # A path of this machine.
    plain.pop("data", None)
    return plain


def _plain(path: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("recipe", choices=sorted(MEASUREMENTS))
    parser.add_argument("--data", type=Path, help="instead of phantoms or the real data")
    parser.add_argument("--quick", action="store_true", help="the tiniest form")
    options = parser.parse_args(arguments)
    name, asked = options.recipe, " --quick" if options.quick else ""
    record = head("recipe", f"{name}{asked}{' --data DATA' if options.data else ''}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        given = options.data or (_PHANTOMS[name](work, options.quick) if name in _PHANTOMS else None)
        data = given or real_data() / _TASKS[name].data
        found = MEASUREMENTS[name](data, work, options.quick)
    print(f"see {write_record(found | record, f'recipe_{name}', out=options.out)}")


if __name__ == "__main__":
    main()
