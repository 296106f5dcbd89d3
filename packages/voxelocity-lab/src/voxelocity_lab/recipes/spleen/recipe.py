"""What `voxelocity recipe spleen` does: `voxelocity train` with an abdominal window, predictions, and a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import voxelocity
from voxelocity.core.cases import Cases
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.factors import SIDES, factors_table, split_factors
from voxelocity_lab.recipes.results import find_training_data, open_results
from voxelocity_lab.recipes.segmentation import (
    Contest,
    check_trained,
    find_unseen_cases,
    predict_with_pictures,
    race,
    train_on,
    with_phantoms,
)
from voxelocity_lab.recipes.spleen.phantom import NUM_CASES, make_spleens
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.document import TableView

KEYS: dict[str, Any] = {
    # As in MONAI's tutorials of the spleen: nearly isotropic, and the window in which soft tissue differs.
    "data.prepare.spacing_mm": [1.5, 1.5, 2.0],
    "data.prepare.intensity": {"mode": "window", "low": -57.0, "high": 164.0},
    "loss.name": "dice_ce",
}
"""Of the plan; the rules choose the rest, `call.overrides` change any."""
CONTEST = Contest(
    recipe="spleen",
    words="The spleen",
    summary=(
        "The same loss, patches and split, one after another on this machine. MONAI's scripts follow its tutorials in "
        "how they get their batches, and train nnU-Net's network with AdamW at the best of four learning rates. Each "
        "side differs from the one before it by one change: what is kept, who computes the steps, which network and "
        "optimizer, in which precision."
    ),
    # As in MONAI's guide to fast training.
    target_dice=0.95,
    keys={**LIMITS, **KEYS},
    peer_keys=PEER_KEYS,
    sides=SIDES,
)


def train(call: Call) -> None:
    """Trains on an MSD folder such as Task09_Spleen, with fold 0 held out."""
    train_on(call, _spleens(_with_data(call).data), KEYS)


def predict(call: Call) -> None:
    """Predicts the scans in `imagesTs`, or those held out if there are none, into `predictions`, with pictures.

    Of other data than the run's, that is all scans, whatever their classes, into a folder of their own.
    """
    call = _with_data(call)
    check_trained(call)
    results, cases = open_results(call, find_training_data(call.out)), voxelocity.open(call.data)
    scans = [path for path in [call.data / "imagesTs"] if path.is_dir() and any(path.iterdir())]
    if results is not call:
        scans += [ref.images[0] for ref in cases]
    elif not scans:
        scans = [ref.images[0] for ref in find_unseen_cases(call, cases)]
    predict_with_pictures(call, scans, results=results)


def benchmark(call: Call) -> None:
    """Races from MONAI's plain script to ours, one change at a time, to a Dice; the page is `race.html`."""
    call = _with_data(call)
    outcome = race(call, call.data, CONTEST)
    changes = split_factors(outcome.to_plain())
    call.console.print(TableView(factors_table(changes, target_dice=outcome.race.target_dice)))


def _with_data(call: Call) -> Call:
    """The call, with phantoms if it asks for them.

    Raises:
        DatasetError: there are no data.
    """
    call = with_phantoms(call, make_spleens, num_cases=NUM_CASES)
    if not call.data.exists():
        raise DatasetError(
            f"spleen: {call.data} does not exist; name the folder of MSD's Task09_Spleen, which medicaldecathlon.com "
            "offers as an archive of 1.5 GB to unpack, or write phantoms for synthetic cases"
        )
    return call


def _spleens(data: Path) -> Cases:
    """The cases, which must have one class.

    Raises:
        DatasetError: there are more.
    """
    cases = voxelocity.open(data)
    if len(cases.labels) != 2:
        names = ", ".join(cases.class_names[1:])
        raise DatasetError(
            f"spleen: {data} has the classes {names}; this recipe is for one organ, voxelocity train for any number"
        )
    return cases
