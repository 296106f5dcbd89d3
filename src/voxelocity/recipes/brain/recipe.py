"""What `voxelocity recipe brain` does: `voxelocity train` on overlapping classes, predictions, and a race."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import voxelocity
from voxelocity.bench.race.job import LIMITS, PEER_KEYS
from voxelocity.core.config import AUTO
from voxelocity.infer import predict_files
from voxelocity.observe import cpu_budget
from voxelocity.recipes.brain.dataset import brain_dataset
from voxelocity.recipes.call import Call
from voxelocity.recipes.raced import race_on
from voxelocity.report import TableView, factor_table
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
_LIMIT_S = 3600.0


def train(call: Call) -> None:
    """Trains on a folder as BraTS has it, or on any data set with overlapping classes, with fold 0 held out."""
    voxelocity.train(
        voxelocity.open(brain_dataset(call.data, call.out.with_name(f"{call.out.name}-data"))),
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
    """Predicts the scans held out into `predictions`, with pictures, and prints scores by both rules."""
    cases = voxelocity.open(brain_dataset(call.data, call.out.with_name(f"{call.out.name}-data")))
    folder = call.out / "predictions"
    scans = [path for ref in cases.split(0).validation for path in ref.images]
    written = predict_files(
        [call.out],
        scans,
        folder,
        device=(call.device,),
        num_threads=cpu_budget(),
        previews=True,
        page=True,
        overwrite=True,
        warn=lambda text: call.console.print(f"warning: {text}", style="yellow", soft_wrap=True),
    )
    scores = json.loads((call.out / "scores.json").read_text())["cases"]
    call.console.print(TableView(score_table([case["dice"] for case in scores])))
    call.console.print(f"predicted {len(written)} cases into {folder}; see {call.out / 'report.html'}", soft_wrap=True)


def score_table(dice: Sequence[Mapping[str, float | None]]) -> Table:
    """Mean Dice of each class by our rule, which leaves out cases without the class, and by the challenge's.

    The challenge counts a case as right (1) if neither truth nor prediction have the class. A prediction where there is
    nothing counts as 0 by both.
    """
    rows = []
    for name in dice[0]:
        found = [case[name] for case in dice]
        known = [value for value in found if value is not None]
        rows.append(
            (
                name,
                f"{fmean(known):.3f}" if known else "n/a",
                f"{fmean(1.0 if value is None else value for value in found):.3f}",
                str(len(found) - len(known)),
            )
        )
    heads = ("class", "Dice", "Dice by BraTS' rule", "cases with neither")
    return Table(caption="Mean Dice over the held-out cases", heads=heads, rows=rows)


def benchmark(call: Call) -> None:
    """Races MONAI's fast recipe and its plain script to Dice 0.85 of the held-out cases; the page is `race.html`."""
    call.out.mkdir(parents=True, exist_ok=True)
    keys = {**LIMITS, **KEYS, "window.overlap": LIMITS["window.overlap"], **call.overrides}
    outcome = race_on(
        brain_dataset(call.data, call.out / "data"),
        call.out,
        "race",
        title=f"Three overlapping classes to a Dice of {TARGET_DICE:g}: MONAI and Voxelocity",
        summary=(
            "The same SegResNet, loss, optimizer, patches and split, one after another on this machine. Seconds count "
            "from the start of each process, imports and caching included."
        ),
        command=f"voxelocity recipe brain benchmark {call.data} -o {call.out}",
        target_dice=TARGET_DICE,
        limit_s=call.time_budget_s or _LIMIT_S,
        seeds=range(call.seed, call.seed + 3),
        keys=keys,
        peer_keys={key: value for key, value in PEER_KEYS.items() if key not in keys},
        console=call.console,
    )
    call.console.print(TableView(factor_table(outcome.runs, target_dice=TARGET_DICE)))
    call.console.print(TableView(outcome.table))
