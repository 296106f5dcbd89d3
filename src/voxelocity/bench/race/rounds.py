"""All sides, seed by seed, each round begun by another side; results are kept even if a later round fails."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxelocity.bench.paired import Comparison, Figure
from voxelocity.bench.race.judge import judge
from voxelocity.bench.race.sides import LABELS, Race, SideName, train_side, weights_of
from voxelocity.core.records import CaseScore
from voxelocity.metrics import summarize
from voxelocity.report import LabeledRun, Parity, duration_text, median_run, paired_trainings
from voxelocity.report.document import Table

Sides = tuple[tuple[LabeledRun, ...], ...]
Scores = tuple[tuple[tuple[CaseScore, ...], ...], ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Every training of every side, in the order of the seeds.

    Attributes:
        race: what they were to do.
        sides: by side, the first to be beaten, the last Voxelocity.
        seeds: of the trainings.
        scores: of the held-out cases, by side and seed; empty where a target ends the trainings.
    """

    race: Race
    sides: Sides
    seeds: tuple[int, ...]
    scores: Scores = ()

    @property
    def runs(self) -> tuple[LabeledRun, ...]:
        """Each side as one run, with the medians over the seeds."""
        return tuple(median_run(side) for side in self.sides)

    def parity(self, side: int = 0) -> Parity | None:
        """Dice of Voxelocity and of another side, paired by seed, or by case where there is one seed."""
        return paired_trainings(self.scores[side], self.scores[-1]) if self.scores else None

    @property
    def table(self) -> Table:
        """The figure of every side and seed, with the median and the range."""
        return self._dice_table() if self.race.target_dice == 0.0 else self._time_table()

    def _time_table(self) -> Table:
        rows = []
        for side in self.sides:
            reached = [run.seconds_to_target for run in side]
            known = [seconds for seconds in reached if seconds is not None]
            spread = f"{duration_text(min(known))} to {duration_text(max(known))}" if len(known) > 1 else ""
            median = duration_text(median_run(side).seconds_to_target)
            each = ["not reached" if seconds is None else duration_text(seconds) for seconds in reached]
            rows.append([side[0].label, median, spread, f"{len(known)} of {len(side)}", *each])
        heads = ["", "median", "range", "reached", *(f"seed {seed}" for seed in self.seeds)]
        return Table(caption=f"Time to Dice {self.race.target_dice:g}", heads=heads, rows=rows)

    def _dice_table(self) -> Table:
        rows = []
        for side in self.sides:
            dice = [run.final_dice for run in side if run.final_dice is not None]
            spread = f"{min(dice):.4f} to {max(dice):.4f}"
            rows.append([side[0].label, f"{statistics.median(dice):.4f}", spread, *(f"{one:.4f}" for one in dice)])
        heads = ["", "median", "range", *(f"seed {seed}" for seed in self.seeds)]
        return Table(caption=f"Dice after {duration_text(self.race.limit_s)}", heads=heads, rows=rows)

    def to_plain(self) -> dict[str, Any]:
        """Every training as plain values, without what is equal in all of them."""
        return {
            "target_dice": self.race.target_dice or None,
            "limit_s": self.race.limit_s,
            "seeds": list(self.seeds),
            "seconds_to_target": {side[0].label: [run.seconds_to_target for run in side] for side in self.sides},
            "final_dice": {side[0].label: [run.final_dice for run in side] for side in self.sides},
            "trainings": {side[0].label: [_training(run) for run in side] for side in self.sides},
            "ours_higher_by": {side[0].label: _gain(self.parity(n)) for n, side in enumerate(self.sides[:-1])},
        }

    def comparison(self, words: str) -> Comparison:
        """The same for a benchmark's record, ours first; a target that was not reached counts as the limit."""
        ours_first = (self.sides[-1], *self.sides[:-1])
        target = self.race.target_dice
        figures = tuple(
            Figure(
                name=side[0].label,
                note=_not_reached(side) if target else "",
                values=tuple(_figure(run, target, self.race.limit_s) for run in side),
            )
            for side in ours_first
        )
        if target:
            return Comparison(title=f"{words}: time to Dice {target:g}", unit="s", better="smaller", figures=figures)
        title = f"{words}: Dice after {duration_text(self.race.limit_s)}"
        return Comparison(title=title, unit="mean Dice", better="larger", figures=figures)


def run_rounds(
    race: Race,
    names: Sequence[SideName],
    seeds: Sequence[int],
    *,
    on_start: Callable[[str, int], None],
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Trains every side with every seed.

    Args:
        race: what they are to do.
        names: sides, ours last.
        seeds: one round each.
        on_start: called with the side and the seed before each training.
        on_outcome: called with the results so far after each round.

    Raises:
        VoxelocityError: a training failed.
    """
    assert names[-1] == "ours", "comparisons and pages name ours last"
    found: dict[SideName, list[LabeledRun]] = {name: [] for name in names}
    scores: dict[SideName, list[tuple[CaseScore, ...]]] = {name: [] for name in names}
    outcome: Outcome | None = None
    for turn, seed in enumerate(seeds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            on_start(LABELS[name], seed)
            run = train_side(name, race, seed=seed)
            if race.target_dice == 0.0:
                scores[name].append(judge(race.planned, weights_of(name, race)))
                run = replace(run, final_dice=summarize(scores[name][-1]).mean_dice)
            found[name].append(run)
        outcome = Outcome(
            race=race,
            sides=tuple(tuple(runs) for runs in found.values()),
            seeds=tuple(seeds[: turn + 1]),
            scores=() if race.target_dice else tuple(tuple(judged) for judged in scores.values()),
        )
        on_outcome(outcome)
    assert outcome is not None, "a seed"
    return outcome


def _training(run: LabeledRun) -> dict[str, Any]:
    names = ("seconds_per_epoch", "images_per_s", "wait_share", "wall_s", "peak_host_bytes")
    return {
        **{name: getattr(run, name) for name in names},
        "stages": {stage.name: stage.seconds for stage in run.stages},
        "dice_history": [list(point) for point in run.dice_history],
    }


def _gain(parity: Parity | None) -> dict[str, Any] | None:
    if parity is None:
        return None
    row = parity.overall
    return {"mean": row.difference, "low": row.low, "high": row.high, "n": row.n, "unit": parity.unit}


def _figure(run: LabeledRun, target_dice: float, limit_s: float) -> float:
    if target_dice:
        return limit_s if run.seconds_to_target is None else run.seconds_to_target
    assert run.final_dice is not None, "judged"
    return run.final_dice


def _not_reached(side: Sequence[LabeledRun]) -> str:
    missed = sum(run.seconds_to_target is None for run in side)
    return f"{missed} of {len(side)} did not reach it and count as the limit" if missed else ""
