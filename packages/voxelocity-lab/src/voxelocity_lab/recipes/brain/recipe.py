"""What `voxelocity recipe brain` does: `voxelocity train` on overlapping classes, predictions, and a race."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import voxelocity
from voxelocity.core.cases import Cases
from voxelocity.core.learning import read_mark
from voxelocity.training.run_folder import RunFolder
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.recipes.brain.dataset import describe_brains, find_scans, find_source
from voxelocity_lab.recipes.brain.phantom import NUM_CASES, make_brains
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pages import unlearned_verdict
from voxelocity_lab.recipes.results import find_training_data, is_same, open_results
from voxelocity_lab.recipes.segmentation import (
    Contest,
    check_trained,
    find_unseen_cases,
    predict_with_pictures,
    race,
    read_division,
    train_on,
    with_phantoms,
)
from voxelocity_observe.core.plain import table_cell
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import TableView
from voxelocity_observe.document.blocks import Table

KEYS: dict[str, Any] = {
    "network.name": "segresnet",
    "network.widths": [16, 32, 64, 128],
    "network.strides": [[2, 2, 2]] * 3,
    # For small classes next to large ones.
    "loss.name": "dice_focal",
    "optimizer.name": "novograd",
    "optimizer.learning_rate": 5e-3,
    # A small class lies more often in the middle of some window.
    "window.overlap": 0.6,
}
"""Of the plan; the rules choose the rest, `call.overrides` change any."""
CONTEST = Contest(
    recipe="brain",
    words="Three overlapping classes",
    summary=(
        "The same SegResNet, loss, NovoGrad, patches and split, one after another on this machine. Voxelocity also "
        "averages its weights and ramps up the augmentation over the first epochs; with the peers' network it does "
        "neither."
    ),
    target_dice=0.85,
    # All sides validate alike.
    keys={**LIMITS, **KEYS, "window.overlap": LIMITS["window.overlap"]},
    peer_keys=PEER_KEYS,
    sides=("fast", "plain", "equal", "ours"),
)


def train(call: Call) -> None:
    """Trains on a folder as BraTS has it, or on any data set with overlapping classes, with fold 0 held out."""
    call = _with_data(call)
    # A command that is refused must not change what describes the data of a run.
    is_new = call.overwrite or not RunFolder(call.out).holds_run
    train_on(call, _cases(call, may_replace=is_new), KEYS)


def predict(call: Call) -> None:
    """Predicts the scans held out into `predictions`, with pictures, and prints scores by both rules.

    Of other data than the run's, it predicts all scans into a folder of their own, without scores; they need no labels.
    """
    call = _with_data(call)
    check_trained(call)
    results = open_results(call, _origin(call))
    is_own = results is call
    # Files of the challenge do not say by their names which channel they are.
    listed = results.out / ("held_out.csv" if is_own else "scans.csv")
    scans: Mapping[str, Sequence[Path]] = (
        {ref.case_id: ref.images for ref in find_unseen_cases(call, _cases(call))} if is_own else find_scans(call.data)
    )
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["case", *(f"image_{number}" for number in range(max(map(len, scans.values()))))])
    rows.writerows([table_cell(name), *(path.resolve() for path in images)] for name, images in scans.items())
    write_whole(listed, text.getvalue().encode())
    predict_with_pictures(call, [listed], results=results)
    if not is_own:
        return
    if mark := read_mark(call.out / "scores.json"):
        call.console.print(f"warning: {unlearned_verdict(mark)}", style="yellow", highlight=False, soft_wrap=True)
        return
    held_out = read_division(call).held_out
    scores = json.loads((call.out / "scores.json").read_text())["cases"]
    if dice := [case["dice"] for case in scores if case["case_id"] in held_out]:
        call.console.print(TableView(score_table(dice, num_held_out=len(held_out))))


def _cases(call: Call, *, may_replace: bool = True) -> Cases:
    return voxelocity.open(describe_brains(call.data, _described(call), may_replace=may_replace))


def _described(call: Call) -> Path:
    """Where a folder of the challenge is described for the run."""
    # The current folder has no name of its own.
    out = call.out.absolute()
    return out.with_name(f"{out.name}-data")


def _origin(call: Call) -> Path | None:
    """The data that the run was trained on; of a description, the folder that it describes."""
    data = find_training_data(call.out)
    return data if data is None or not is_same(_described(call), data) else find_source(data)


@dataclass(frozen=True, kw_only=True)
class ClassMean:
    """Mean Dice of a class by two rules.

    Attributes:
        dice: by ours, which leaves out cases where neither truth nor prediction have the class; None if all are such.
        dice_of_challenge: those cases count as right (1). A prediction where there is nothing counts as 0 by both.
        num_without: cases in which the rules differ.
    """

    dice: float | None
    dice_of_challenge: float
    num_without: int


def class_means(dice: Sequence[Mapping[str, float | None]]) -> dict[str, ClassMean]:
    """The mean Dice of each class over cases, each of which has the Dice of all classes."""
    means = {}
    for name in dice[0]:
        found = [case[name] for case in dice]
        known = [value for value in found if value is not None]
        means[name] = ClassMean(
            dice=fmean(known) if known else None,
            dice_of_challenge=fmean(1.0 if value is None else value for value in found),
            num_without=len(found) - len(known),
        )
    return means


def score_table(dice: Sequence[Mapping[str, float | None]], *, num_held_out: int | None = None) -> Table:
    """What `class_means` finds, as it is printed; with how many of the held-out cases have scores, if not all have."""
    rows = [
        (
            name,
            "n/a" if mean.dice is None else f"{mean.dice:.3f}",
            f"{mean.dice_of_challenge:.3f}",
            str(mean.num_without),
        )
        for name, mean in class_means(dice).items()
    ]
    heads = ("class", "Dice", "Dice by BraTS' rule", "cases with neither")
    part = "" if num_held_out in (None, len(dice)) else f"{len(dice)} of "
    num = "" if num_held_out is None else f"{num_held_out} "
    return Table(caption=f"Mean Dice over {part or 'the '}{num}held-out cases", heads=heads, rows=rows)


def benchmark(call: Call) -> None:
    """Races MONAI's scripts, ours as they train, and ours to a mean Dice of the regions; the page is `race.html`."""
    call = _with_data(call)
    race(call, describe_brains(call.data, call.out / "data"), CONTEST)


def _with_data(call: Call) -> Call:
    return with_phantoms(call, make_brains, num_cases=NUM_CASES)
