"""What each of several changes to a training brought, of a race whose sides differ from one to the next by one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxelocity_lab.bench.race.rounds import target_factor_text
from voxelocity_lab.bench.race.sides import LABELS, SideName
from voxelocity_observe.core.quantities import duration_text, factor_text
from voxelocity_observe.document.blocks import Table

SIDES: tuple[SideName, ...] = ("plain", "fast", "equal", "float32", "ours")
"""As MONAI's guide builds up its speed: all but the last in float32."""
ADDED: Mapping[str, str] = {
    LABELS["plain"]: "the plain script",
    LABELS["fast"]: "cache: MONAI's fast recipe",
    LABELS["equal"]: "device and step: Voxelocity, the same algorithm",
    LABELS["float32"]: "algorithm: network and optimizer by the plan",
    LABELS["ours"]: "precision by the plan",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A side of the race, and its rounds next to those of the side before it.

    Attributes:
        label: of the side.
        epoch_s: seconds of a pass over the training cases, by round.
        target_s: seconds from the start of the process to the target, by round; None where it was not reached.
        best_dice: on the way, by round; 0 of a training that never validated.
        epochs: passes that were trained, by round.
        epoch_factors: how many times less an epoch takes, by round; empty of the first side.
        target_factor_text: how many times sooner the target was reached, as `rounds.target_factor_text` has it.
    """

    label: str
    epoch_s: tuple[float, ...]
    target_s: tuple[float | None, ...]
    best_dice: tuple[float, ...]
    epochs: tuple[float, ...]
    epoch_factors: tuple[float, ...] = ()
    target_factor_text: str = ""

    @property
    def added(self) -> str:
        """What distinguishes it from the side before."""
        return ADDED.get(self.label, self.label)

    @property
    def target_text(self) -> str:
        """The median time to the target."""
        median = statistics.median(math.inf if value is None else value for value in self.target_s)
        return duration_text(median) if math.isfinite(median) else "not reached"


def split_factors(race: Mapping[str, Any]) -> list[Change]:
    """The sides of a race, each next to the one before it; `race` is what `Outcome.to_plain` gives.

    Rounds in which a side failed are left out.
    """
    trainings, reached = race["trainings"], race["seconds_to_target"]
    num = len(race["seeds"])
    whole = [at for at in range(num) if all(rounds[at]["seconds_per_epoch"] for rounds in trainings.values())]
    changes: list[Change] = []
    for label, rounds in trainings.items():
        kept = [rounds[at] for at in whole]
        change = Change(
            label=label,
            epoch_s=tuple(training["seconds_per_epoch"] for training in kept),
            target_s=tuple(reached[label][at] for at in whole),
            best_dice=tuple(max((dice for _, dice in training["dice_history"]), default=0.0) for training in kept),
            epochs=tuple(training["stages"]["training steps"] / training["seconds_per_epoch"] for training in kept),
        )
        changes.append(_next_to(changes[-1], change, race["limit_s"]) if changes else change)
    return changes


def _next_to(before: Change, change: Change, limit_s: float) -> Change:
    return replace(
        change,
        epoch_factors=tuple(a / b for a, b in zip(before.epoch_s, change.epoch_s, strict=True)),
        target_factor_text=target_factor_text(change.target_s, before.target_s, limit_s),
    )


def factors_table(changes: Sequence[Change], *, target_dice: float) -> Table:
    """Medians over the rounds: a row a side, as MONAI's guide to fast training has them."""
    heads = ["what is added", "an epoch", f"to Dice {target_dice:g}", "an epoch, times less", "to the Dice, times less"]
    rows = []
    for change in changes:
        epoch = factor_text(statistics.median(change.epoch_factors)) if change.epoch_factors else ""
        known = [duration_text(statistics.median(change.epoch_s)), change.target_text] if change.epoch_s else ["", ""]
        rows.append([change.added, *known, epoch, change.target_factor_text])
    return Table(caption="What each change brings, next to the row above", heads=heads, rows=rows)
