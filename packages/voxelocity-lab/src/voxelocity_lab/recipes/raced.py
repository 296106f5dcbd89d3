"""A race of trainings on one data set, kept as a page and a record: MONAI's scripts and Voxelocity, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import voxelocity
from voxelocity.planning import make_plan
from voxelocity_lab.bench.race.rounds import Outcome, run_rounds
from voxelocity_lab.bench.race.sides import Race
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import write_page


def race_on(
    dataset: Path,
    out: Path,
    name: str,
    *,
    title: str,
    summary: str,
    command: str,
    target_dice: float,
    limit_s: float,
    seeds: Sequence[int],
    keys: Mapping[str, Any],
    peer_keys: Mapping[str, Any],
    epochs_per_validation: int = 2,
    console: Console,
) -> Outcome:
    """Trains MONAI's fast recipe, its plain script and Voxelocity with each seed, one after another.

    Args:
        dataset: as `voxelocity train` takes it.
        out: where each side leaves its files; runs there are replaced.
        name: of the page and the record in it.
        title: of the page.
        summary: what the sides share.
        command: that repeats it.
        target_dice: mean foreground Dice of the held-out cases that ends a training.
        limit_s: seconds after which a training ends without it.
        seeds: one round each.
        keys: of the plan, equal on all sides.
        peer_keys: of the peers' plan alone.
        epochs_per_validation: of every side.
        console: for progress.

    Raises:
        VoxelocityError: one side failed.
    """
    race = Race(
        dataset=dataset,
        # Step times of this plan are kept separately: `voxelocity train` must not find them already measured.
        planned=make_plan(voxelocity.open(dataset), overrides={**peer_keys, **keys}, cache_folder=out / "plan"),
        out=out,
        target_dice=target_dice,
        limit_s=limit_s,
        epochs_per_validation=epochs_per_validation,
        keys=keys,
    )
    outcome = run_rounds(
        race, ("fast", "plain", "ours"), seeds, on_start=lambda side, number: console.rule(f"{side}, seed {number}")
    )
    document = outcome.document(title=title, summary=summary, command=command)
    write_page(document, out / f"{name}.html")
    plain = document.to_plain() | outcome.to_plain()
    write_whole(out / f"{name}.json", (json.dumps(plain, indent=1) + "\n").encode())
    return outcome
