"""What `voxelocity recipe brain` does: `voxelocity train` on overlapping classes, predictions, and a race."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import voxelocity
from voxelocity.bench.race.job import LIMITS, PEER_KEYS
from voxelocity.core.cases import Cases
from voxelocity.core.plain import table_cell
from voxelocity.core.whole_file import write_whole
from voxelocity.recipes.brain.dataset import brain_dataset
from voxelocity.recipes.call import Call
from voxelocity.recipes.segmentation import check_trained, predict_with_pictures, race, train_on, unseen_cases
from voxelocity.report import TableView
from voxelocity.report.document import Table

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
TARGET_DICE = 0.85


def train(call: Call) -> None:
    """Trains on a folder as BraTS has it, or on any data set with overlapping classes, with fold 0 held out."""
    train_on(call, _cases(call), KEYS)


def predict(call: Call) -> None:
    """Predicts the scans held out into `predictions`, with pictures, and prints scores by both rules."""
    check_trained(call.out)
    # Files of the challenge do not say by their names which channel they are.
    listed = call.out / "held_out.csv"
    held_out = unseen_cases(call, _cases(call))
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["case", *(f"image_{number}" for number in range(len(held_out[0].images)))])
    rows.writerows([table_cell(ref.case_id), *(path.resolve() for path in ref.images)] for ref in held_out)
    write_whole(listed, text.getvalue().encode())
    predict_with_pictures(call, [listed])
    scores = json.loads((call.out / "scores.json").read_text())["cases"]
    call.console.print(TableView(score_table([case["dice"] for case in scores])))


def _cases(call: Call) -> Cases:
    # The current folder has no name of its own.
    out = call.out.absolute()
    return voxelocity.open(brain_dataset(call.data, out.with_name(f"{out.name}-data")))


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


def score_table(dice: Sequence[Mapping[str, float | None]]) -> Table:
    """What `class_means` finds, as it is printed."""
    rows = [
        (name, "n/a" if one.dice is None else f"{one.dice:.3f}", f"{one.dice_of_challenge:.3f}", str(one.num_without))
        for name, one in class_means(dice).items()
    ]
    heads = ("class", "Dice", "Dice by BraTS' rule", "cases with neither")
    return Table(caption="Mean Dice over the held-out cases", heads=heads, rows=rows)


def benchmark(call: Call) -> None:
    """Races MONAI's fast recipe and its plain script to Dice 0.85 of the held-out cases; the page is `race.html`."""
    keys = {**LIMITS, **KEYS, "window.overlap": LIMITS["window.overlap"], **call.overrides}
    race(
        call,
        brain_dataset(call.data, call.out / "data"),
        title=f"Three overlapping classes to a Dice of {TARGET_DICE:g}: MONAI and Voxelocity",
        summary="The same SegResNet, loss, optimizer, patches and split, one after another on this machine.",
        name="brain",
        target_dice=TARGET_DICE,
        keys=keys,
        peer_keys={key: value for key, value in PEER_KEYS.items() if key not in keys},
    )
