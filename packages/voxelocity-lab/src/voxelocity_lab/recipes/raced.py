"""A race of trainings on one data set, kept as a page and a record: MONAI's scripts and Voxelocity, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import voxelocity
from voxelocity.planning import make_plan
from voxelocity_lab.bench.race.rounds import Outcome, run_rounds
from voxelocity_lab.bench.race.sides import Race
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import write_page


@dataclass(frozen=True, kw_only=True)
class RacePage:
    """What the page of a race says of it.

    Attributes:
        name: of the page and of the record next to it.
        title: of the page.
        summary: what the sides share.
        command: that repeats it.
    """

    name: str
    title: str
    summary: str
    command: str


def race_on(
    dataset: Path,
    out: Path,
    *,
    target_dice: float,
    limit_s: float,
    keys: Mapping[str, Any],
    peer_keys: Mapping[str, Any],
    epochs_per_validation: int = 2,
) -> Race:
    """The race of trainings on a data set.

    Args:
        dataset: as `voxelocity train` takes it.
        out: where each side leaves its files; runs there are replaced.
        target_dice: mean foreground Dice of the held-out cases that ends a training.
        limit_s: seconds after which a training ends without it.
        keys: of the plan, equal on all sides.
        peer_keys: of the peers' plan alone.
        epochs_per_validation: of every side.
    """
    return Race(
        dataset=dataset,
        # Step times of this plan are kept separately: `voxelocity train` must not find them already measured.
        planned=make_plan(voxelocity.open(dataset), overrides={**peer_keys, **keys}, cache_folder=out / "plan"),
        out=out,
        target_dice=target_dice,
        limit_s=limit_s,
        epochs_per_validation=epochs_per_validation,
        keys=keys,
    )


def publish_race(race: Race, seeds: Sequence[int], page: RacePage, *, console: Console) -> Outcome:
    """Trains MONAI's fast recipe, its plain script and Voxelocity with each seed, one after another.

    Raises:
        VoxelocityError: one side failed.
    """
    outcome = run_rounds(
        race, ("fast", "plain", "ours"), seeds, on_start=lambda side, number: console.rule(f"{side}, seed {number}")
    )
    document = outcome.document(title=page.title, summary=page.summary, command=page.command)
    write_page(document, race.out / f"{page.name}.html")
    plain = document.to_plain() | outcome.to_plain()
    write_whole(race.out / f"{page.name}.json", (json.dumps(plain, indent=1) + "\n").encode())
    return outcome
