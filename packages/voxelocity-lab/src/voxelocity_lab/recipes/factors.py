"""What each of several changes to a training brought, of a race whose sides differ from one to the next by one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxelocity_lab.bench.race.sides import LABELS, SideName
from voxelocity_observe.core.quantities import NOT_AVAILABLE, duration_text, factor_text
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
        target_factors: how many times sooner the target was reached; a limit counts where it was not.
        is_at_least: the side before it missed the target in a round, so the factor is too small.
        is_at_most: this one did, so the factor is too large.
    """

    label: str
    epoch_s: tuple[float, ...]
    target_s: tuple[float | None, ...]
    best_dice: tuple[float, ...]
    epochs: tuple[float, ...]
    epoch_factors: tuple[float, ...] = ()
    target_factors: tuple[float, ...] = ()
    is_at_least: bool = False
    is_at_most: bool = False

    @property
    def added(self) -> str:
        """What distinguishes it from the side before."""
        return ADDED.get(self.label, self.label)

    @property
    def target_text(self) -> str:
        """The median time to the target."""
        median = statistics.median(math.inf if value is None else value for value in self.target_s)
        return duration_text(median) if math.isfinite(median) else "not reached"

    @property
    def target_factor_text(self) -> str:
        """The median factor of that time; a bound where the target was missed, nothing where both sides missed it."""
        if not self.target_factors or (self.is_at_least and self.is_at_most):
            return NOT_AVAILABLE if self.target_factors else ""
        bound = "at least " if self.is_at_least else "at most " if self.is_at_most else ""
        return bound + factor_text(statistics.median(self.target_factors))


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
    def seconds(found: Sequence[float | None]) -> list[float]:
        return [limit_s if value is None else value for value in found]

    pairs = zip(seconds(before.target_s), seconds(change.target_s), strict=True)
    return replace(
        change,
        epoch_factors=tuple(a / b for a, b in zip(before.epoch_s, change.epoch_s, strict=True)),
        target_factors=tuple(a / b for a, b in pairs),
        is_at_least=None in before.target_s,
        is_at_most=None in change.target_s,
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
