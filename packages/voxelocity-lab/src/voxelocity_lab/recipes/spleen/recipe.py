"""What `voxelocity recipe spleen` does: `voxelocity train` with an abdominal window, predictions, and a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import voxelocity
from voxelocity.core.cases import Cases
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.results import find_training_data, open_results
from voxelocity_lab.recipes.segmentation import check_trained, find_unseen_cases, predict_with_pictures, race, train_on
from voxelocity_observe.core.errors import DatasetError

KEYS: dict[str, Any] = {
    # As in MONAI's tutorials of the spleen: nearly isotropic, and the window in which soft tissue differs.
    "data.prepare.spacing_mm": [1.5, 1.5, 2.0],
    "data.prepare.intensity": {"mode": "window", "low": -57.0, "high": 164.0},
    "loss.name": "dice_ce",
}
"""Of the plan; the rules choose the rest, `call.overrides` change any."""
TARGET_DICE = 0.9


def train(call: Call) -> None:
    """Trains on an MSD folder such as Task09_Spleen, with fold 0 held out."""
    train_on(call, _spleens(call.data), KEYS)


def predict(call: Call) -> None:
    """Predicts the scans in `imagesTs`, or those held out if there are none, into `predictions`, with pictures.

    Of other data than the run's, that is all scans, into a folder of their own.
    """
    check_trained(call.out)
    results = open_results(call, find_training_data(call.out))
    unlabeled, cases = call.data / "imagesTs", _spleens(call.data)
    if unlabeled.is_dir() and any(unlabeled.iterdir()):
        scans = [unlabeled]
    else:
        scans = [ref.images[0] for ref in (find_unseen_cases(call, cases) if results is call else cases.refs)]
    predict_with_pictures(call, scans, results=results)


def benchmark(call: Call) -> None:
    """Races MONAI's fast recipe and its plain script to Dice 0.9 of the held-out scans; the page is `race.html`."""
    race(
        call,
        call.data,
        title=f"The spleen to a Dice of {TARGET_DICE:g}: MONAI and Voxelocity",
        summary=(
            "The same network, loss, patches and split, one after another on this machine. MONAI's scripts follow its "
            "tutorials in how they get their batches, and train with AdamW at the best of four learning rates."
        ),
        name="spleen",
        target_dice=TARGET_DICE,
        keys={**LIMITS, **KEYS, **call.overrides},
        peer_keys=PEER_KEYS,
    )


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
