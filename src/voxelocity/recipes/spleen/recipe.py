"""What `voxelocity recipe spleen` does: `voxelocity train` with an abdominal window, predictions, and a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import voxelocity
from voxelocity.bench.race.job import LIMITS, PEER_KEYS
from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO
from voxelocity.core.errors import DatasetError
from voxelocity.infer import predict_files
from voxelocity.observe import cpu_budget
from voxelocity.recipes.call import Call
from voxelocity.recipes.raced import race_on
from voxelocity.report import TableView, factor_table

KEYS: dict[str, Any] = {
    # As in MONAI's tutorials of the spleen: nearly isotropic, and the window in which soft tissue differs.
    "data.prepare.spacing_mm": [1.5, 1.5, 2.0],
    "data.prepare.intensity": {"mode": "window", "low": -57.0, "high": 164.0},
    "loss.name": "dice_ce",
}
"""Of the plan; the rules choose the rest, `call.overrides` change any."""
TARGET_DICE = 0.9
_LIMIT_S = 3600.0


def train(call: Call) -> None:
    """Trains on an MSD folder such as Task09_Spleen, with fold 0 held out."""
    voxelocity.train(
        _spleens(call.data),
        call.out,
        time_budget_s=call.time_budget_s or AUTO,
        seed=AUTO if call.resume else call.seed,
        device=call.device_choice,
        # A run that continues has its own settings.
        overrides=call.overrides if call.resume else {**KEYS, **call.overrides},
        resume=call.resume,
        overwrite=call.overwrite,
        console=call.console,
        sinks=call.sinks,
        spent_s=call.spent_s,
    )


def predict(call: Call) -> None:
    """Predicts the scans in `imagesTs`, or those held out if there are none, into `predictions`, with pictures."""
    unlabeled = call.data / "imagesTs"
    held_out = [ref.images[0] for ref in _spleens(call.data).split(0).validation]
    folder = call.out / "predictions"
    written = predict_files(
        [call.out],
        [unlabeled] if unlabeled.is_dir() and any(unlabeled.iterdir()) else held_out,
        folder,
        device=(call.device,),
        num_threads=cpu_budget(),
        previews=True,
        page=True,
        overwrite=True,
        warn=lambda text: call.console.print(f"warning: {text}", style="yellow", soft_wrap=True),
    )
    call.console.print(f"predicted {len(written)} scans into {folder}; see {call.out / 'report.html'}", soft_wrap=True)


def benchmark(call: Call) -> None:
    """Races MONAI's fast recipe and its plain script to Dice 0.9 of the held-out scans; the page is `race.html`."""
    call.out.mkdir(parents=True, exist_ok=True)
    outcome = race_on(
        call.data,
        call.out,
        "race",
        title=f"The spleen to a Dice of {TARGET_DICE:g}: MONAI and Voxelocity",
        summary=(
            "The same network, loss, patches and split, one after another on this machine. MONAI's scripts follow its "
            "tutorials in how they get their batches, and train with AdamW at the best of four learning rates. Seconds "
            "count from the start of each process, imports and caching included."
        ),
        command=f"voxelocity recipe spleen benchmark {call.data} -o {call.out}",
        target_dice=TARGET_DICE,
        limit_s=call.time_budget_s or _LIMIT_S,
        seeds=range(call.seed, call.seed + 3),
        keys={**LIMITS, **KEYS, **call.overrides},
        peer_keys=PEER_KEYS,
        console=call.console,
    )
    call.console.print(TableView(factor_table(outcome.runs, target_dice=TARGET_DICE)))
    call.console.print(TableView(outcome.table))


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
