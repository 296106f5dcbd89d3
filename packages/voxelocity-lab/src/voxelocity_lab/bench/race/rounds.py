"""All sides, seed by seed, each round begun by another side; results are kept even if a later round fails."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from voxelocity.core.records import CaseScore
from voxelocity.metrics import summarize
from voxelocity.report import (
    LabeledRun,
    Parity,
    comparison_document,
    median_run,
    paired_trainings,
    unlearned_notices,
    with_command,
)
from voxelocity_lab.bench.comparison import Comparison, Figure
from voxelocity_lab.bench.race.judging import judge
from voxelocity_lab.bench.race.sides import LABELS, OWN_LABELS, Race, SideName, train_side, weights_of
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import VoxelocityError
from voxelocity_observe.core.quantities import NOT_AVAILABLE, duration_text, factor_text
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import write_page
from voxelocity_observe.document.blocks import Block, Document, Section, Table, Text

_FEW_SEEDS = 3
_NUM_RESAMPLES = 10_000
_WHOLE = "Only Voxelocity's whole training includes a final validation on the scans' own grids and a report."
_HOMES = (
    "Each round, every side trained twice in a home folder of its own: first in an empty one, where nothing is "
    "compiled or measured yet, then in the same again. Times below are the first ones, all others on this page the "
    "second ones."
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Every training of every side, in the order of the seeds.

    Attributes:
        race: what they were to do.
        sides: by side, the first to be beaten, the last Voxelocity.
        seeds: of the trainings.
        scores: of the held-out cases, by side and seed; empty where a target ends the trainings.
        failures: why a training has no figures, by label and seed.
        cold: the same trainings right before these ones, each in a home folder that was empty; None without them.
    """

    race: Race
    sides: tuple[tuple[LabeledRun, ...], ...]
    seeds: tuple[int, ...]
    scores: tuple[tuple[tuple[CaseScore, ...], ...], ...] = ()
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    cold: Outcome | None = None

    @property
    def runs(self) -> tuple[LabeledRun, ...]:
        """Each side as one run, with the medians over the seeds."""
        return tuple(median_run(side) for side in self.sides)

    def parity(self, side: int = 0) -> Parity | None:
        """Dice of Voxelocity and of another side, paired by seed, or by case where there is one seed."""
        if not self.scores or self.failures or any(run.unlearned for run in (*self.sides[side], *self.sides[-1])):
            return None
        return paired_trainings(self.scores[side], self.scores[-1])

    @property
    def table(self) -> Table:
        """The figure of every side and seed, with the median and the range."""
        target, seeds = self.race.target_dice, [f"seed {seed}" for seed in self.seeds]
        if target:
            heads = ["", "median", "range", "reached", *seeds]
            rows = [_time_row(side) for side in self.sides]
            return Table(caption=f"Time to Dice {target:g}", heads=heads, rows=rows)
        rows = []
        for side in self.sides:
            dice = [run.final_dice for run in side if run.final_dice is not None]
            spread = f"{min(dice):.4f} to {max(dice):.4f}" if dice else ""
            median = f"{statistics.median(dice):.4f}" if dice else NOT_AVAILABLE
            each = [f"{run.final_dice:.4f}" if run.final_dice is not None else NOT_AVAILABLE for run in side]
            rows.append([side[0].label, median, spread, *each])
        caption = f"Dice after {duration_text(self.race.limit_s)}"
        return Table(caption=caption, heads=["", "median", "range", *seeds], rows=rows)

    def to_plain(self) -> dict[str, Any]:
        """Every training as plain values, without what is equal in all of them."""
        return {
            "target_dice": self.race.target_dice or None,
            "limit_s": self.race.limit_s,
            "seeds": list(self.seeds),
            "seconds_to_target": {side[0].label: [run.seconds_to_target for run in side] for side in self.sides},
            "unlearned": {side[0].label: [run.unlearned for run in side] for side in self.sides},
            "final_dice": {side[0].label: [run.final_dice for run in side] for side in self.sides},
            "trainings": {side[0].label: [_training(run) for run in side] for side in self.sides},
            "ours_higher_by": {side[0].label: _gain(self.parity(n)) for n, side in enumerate(self.sides[:-1])},
            "times_faster": [
                {"ours": own[0].label, "peer": peer[0].label, **_factor(self.factors(own, peer))}
                for own, peer in self._pairs()
            ],
            "failures": [[*where, why] for where, why in self.failures.items()],
            **({"cold": self.cold.to_plain()} if self.cold else {}),
        }

    def factors(self, own: Sequence[LabeledRun], peer: Sequence[LabeledRun]) -> list[float]:
        """The `target_factors` of the rounds in which neither failed."""
        own_s, peer_s = self._seconds(own, peer)
        return target_factors(own_s, peer_s, self.race.limit_s)

    def _seconds(self, *sides: Sequence[LabeledRun]) -> list[list[float | None]]:
        """When each of these sides reached the target, in the rounds in which none of them failed."""
        whole = [n for n, seed in enumerate(self.seeds) if not any(self._has_failed(side[n], seed) for side in sides)]
        return [[side[number].seconds_to_target for number in whole] for side in sides]

    def _pairs(self) -> Iterator[tuple[Sequence[LabeledRun], Sequence[LabeledRun]]]:
        """Sides of Voxelocity with each peer, where a target ends the trainings."""
        own = [side for side in self.sides if side[0].label in OWN_LABELS]
        if self.race.target_dice:
            yield from ((mine, peer) for mine in own for peer in self.sides if peer[0].label not in OWN_LABELS)

    def _has_failed(self, run: LabeledRun, seed: int) -> bool:
        return (run.label, seed) in self.failures

    @property
    def factor_table(self) -> Table:
        """How many times sooner sides of Voxelocity reached the target than the peers."""
        rows = []
        for outcome, home in ((self.cold, "empty"), (self, "kept" if self.cold else "the user's")):
            if outcome is None:
                continue
            for own, peer in outcome._pairs():
                own_s, peer_s = outcome._seconds(own, peer)
                factors = target_factors(own_s, peer_s, self.race.limit_s)
                low, high = bootstrap_interval(factors) or (None, None)
                times = target_factor_text(own_s, peer_s, self.race.limit_s, text=lambda factor: f"{factor:.2f}")
                # Of factors that are bounds, there is none.
                has_interval = low is not None and None not in (*own_s, *peer_s)
                interval = f"{low:.2f} to {high:.2f}" if has_interval else NOT_AVAILABLE
                rows.append([own[0].label, peer[0].label, home, times, f"{interval}, n = {len(factors)}"])
        caption = "Times sooner at the target, median of the rounds"
        return Table(caption=caption, heads=["", "than", "home", "times", "95 % interval"], rows=rows)

    def comparison(self, words: str) -> Comparison | None:
        """The same for a benchmark's record, ours first; a target that was not reached counts as the limit.

        Without a target there is nothing to compare where a training was too short to be scored.
        """
        if not self.race.target_dice and any(run.unlearned for side in self.sides for run in side):
            return None
        target, limit_s = self.race.target_dice, self.race.limit_s
        # Figures are paired by round.
        whole = [n for n, seed in enumerate(self.seeds) if not any(self._has_failed(s[n], seed) for s in self.sides)]
        if not whole:
            return None
        figures = []
        for every in (self.sides[-1], *self.sides[:-1]):
            side = [every[number] for number in whole]
            found = [run.seconds_to_target if target else run.final_dice for run in side]
            missed = sum(value is None for value in found)
            assert target or not missed, "judged"
            note = f"{missed} of {len(side)} did not reach it and count as the limit" if missed else ""
            values = tuple(limit_s if value is None else value for value in found)
            figures.append(Figure(name=side[0].label, note=note, values=values))
        title = f"{words}: time to Dice {target:g}" if target else f"{words}: Dice after {duration_text(limit_s)}"
        unit = "s" if target else "mean Dice"
        return Comparison(title=title, unit=unit, better="smaller" if target else "larger", figures=tuple(figures))

    def document(self, *, title: str, summary: str, command: str) -> Document:
        """The page of a race: `summary` is what the sides share, `command` repeats it."""
        more = f"{re.sub(r' --seeds [0-9]+', '', command)} --seeds {_FEW_SEEDS}"
        few = (
            f"n = {len(self.seeds)}: the time to a target varies by a third and more between seeds. With more seeds: "
            f"{more}"
        )
        hint = "The other figures on this page are medians over the seeds; curves are those of the first seed."
        failed = [f"{label}, seed {seed}, has no figures: {why}" for (label, seed), why in self.failures.items()]
        tables: list[Block] = [self.table, Text(text=hint, is_hint=True)]
        if self.cold:
            cold = replace(self.cold.table, caption=f"{self.cold.table.caption}, each in an empty home folder")
            tables = [self.table, Text(text=f"{hint} {_HOMES}", is_hint=True), cold]
        factors = self.factor_table.rows
        document = comparison_document(
            self.runs,
            title,
            target_dice=self.race.target_dice or None,
            parity=self.parity(),
            notices=[*failed, *unlearned_notices(self.runs), *([few] if len(self.seeds) < _FEW_SEEDS else [])],
            sections=[
                *([Section(title="How many times sooner", blocks=[self.factor_table])] if factors else []),
                Section(title="Every seed", blocks=tables),
            ],
            summary=f"{summary} {_WHOLE}",
        )
        return with_command(document, command)

    def write(self, name: str, *, title: str, summary: str, command: str) -> None:
        """Writes NAME.html, as `document` makes it, and NAME.json with every training next to the files of the race."""
        document = self.document(title=title, summary=summary, command=command)
        write_page(document, self.race.out / f"{name}.html")
        plain = document.to_plain() | self.to_plain()
        write_whole(self.race.out / f"{name}.json", (json.dumps(plain, indent=1) + "\n").encode())


def run_rounds(
    race: Race,
    names: Sequence[SideName],
    seeds: Sequence[int],
    *,
    on_start: Callable[[str, int], None],
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    has_homes: bool = False,
    within_s: float = math.inf,
) -> Outcome:
    """Trains every side, ours named last, with every seed, one round each.

    A training that fails has no figures, and the others go on. Ctrl-C ends the round; `on_outcome` then gets it, too.

    Args:
        race: what all sides are to do.
        names: of the sides.
        seeds: one a round.
        on_start: called with the side and the seed before each training.
        on_outcome: called with the results so far after each round.
        has_homes: whether each side trains twice a round in a home folder of its own, which is empty the first time.
        within_s: no round begins that would end later, if it took as long as the longest one so far.

    Raises:
        VoxelocityError: every training of a side failed.
    """
    assert names[-1] == "ours", "comparisons and pages name ours last"
    rounds, watch, longest_s = _Rounds(race, names, has_homes=has_homes, on_start=on_start), Stopwatch(), 0.0
    for turn, seed in enumerate(seeds):
        began_s = watch.elapsed_s
        if turn and began_s + longest_s > within_s:
            break
        try:
            rounds.run(turn, seed)
        except KeyboardInterrupt:
            if rounds.has_some:
                on_outcome(rounds.outcome(why_missing="stopped by Ctrl-C"))
            raise
        longest_s = max(longest_s, watch.elapsed_s - began_s)
        on_outcome(rounds.outcome())
    outcome = rounds.outcome()
    for number, name in enumerate(names):
        failures = [outcome.failures.get((LABELS[name], seed)) for seed in outcome.seeds]
        if all(failures):
            raise VoxelocityError(f"bench: no training of {outcome.sides[number][0].label} succeeded: {failures[0]}")
    return outcome


class _Rounds:
    """Trainings so far, by whether their home folder was empty, side and seed; a failed one has its reason."""

    def __init__(
        self, race: Race, names: Sequence[SideName], *, has_homes: bool, on_start: Callable[[str, int], None]
    ) -> None:
        self.race, self.names, self.on_start = race, names, on_start
        self.passes = (True, False) if has_homes else (False,)
        self.has_homes = has_homes
        self.seeds: list[int] = []
        self.found: dict[tuple[bool, SideName, int], LabeledRun | str] = {}
        self.scores: dict[tuple[bool, SideName, int], tuple[CaseScore, ...]] = {}

    @property
    def has_some(self) -> bool:
        return bool(self.found)

    def run(self, turn: int, seed: int) -> None:
        """One round; the side that begins it is another one each time."""
        self.seeds.append(seed)
        first = turn % len(self.names)
        for name in (*self.names[first:], *self.names[:first]):
            race = replace(self.race, home=self.race.out / "home" / name) if self.has_homes else self.race
            for is_cold in self.passes:
                if is_cold and race.home is not None:
                    shutil.rmtree(race.home, ignore_errors=True)
                home = (", empty home" if is_cold else ", the same home again") if self.has_homes else ""
                self.on_start(f"{LABELS[name]}{home}", seed)
                try:
                    self._train(race, (is_cold, name, seed))
                except VoxelocityError as error:
                    self.found[is_cold, name, seed] = str(error)

    def _train(self, race: Race, key: tuple[bool, SideName, int]) -> None:
        _, name, seed = key
        run = train_side(name, race, seed=seed)
        if race.target_dice == 0.0:
            self.scores[key] = judge(race.planned, weights_of(name, race))
            run = replace(run, final_dice=None if run.unlearned else summarize(self.scores[key]).mean_dice)
        self.found[key] = run

    def outcome(self, *, why_missing: str = "") -> Outcome:
        """All so far; the rest of a round that was stopped is missing for a reason."""
        cold = self._of(True, why_missing) if self.has_homes else None
        return replace(self._of(False, why_missing), cold=cold)

    def _of(self, is_cold: bool, why_missing: str) -> Outcome:
        found = {
            (name, seed): self.found.get((is_cold, name, seed), why_missing)
            for name in self.names
            for seed in self.seeds
        }
        # What failed has a label and nothing else.
        runs = {
            (name, seed): LabeledRun(label=LABELS[name]) if isinstance(run, str) else run
            for (name, seed), run in found.items()
        }
        return Outcome(
            race=self.race,
            sides=tuple(tuple(runs[name, seed] for seed in self.seeds) for name in self.names),
            seeds=tuple(self.seeds),
            scores=()
            if self.race.target_dice
            else tuple(tuple(self.scores.get((is_cold, name, s), ()) for s in self.seeds) for name in self.names),
            failures={(LABELS[name], seed): run for (name, seed), run in found.items() if isinstance(run, str)},
        )


def target_factors(own_s: Sequence[float | None], peer_s: Sequence[float | None], limit_s: float) -> list[float]:
    """How many times sooner a side reached a target than a peer, of the seconds of both by round.

    A side that did not reach it counts with the limit; rounds in which neither did are left out.
    """
    pairs = zip(own_s, peer_s, strict=True)
    known = [[limit_s if value is None else value for value in pair] for pair in pairs if pair != (None, None)]
    return [theirs / mine for mine, theirs in known]


def target_factor_text(
    own_s: Sequence[float | None],
    peer_s: Sequence[float | None],
    limit_s: float,
    *,
    text: Callable[[float], str] = factor_text,
) -> str:
    """The median of `target_factors`: a bound where one side missed the target, not available where both did."""
    factors = target_factors(own_s, peer_s, limit_s)
    missed = [(mine is None, theirs is None) for mine, theirs in zip(own_s, peer_s, strict=True)]
    is_at_most, is_at_least = ((True, False) in missed), ((False, True) in missed)
    if not factors or (is_at_most and is_at_least):
        return NOT_AVAILABLE
    return f"{'at least ' * is_at_least}{'at most ' * is_at_most}{text(statistics.median(factors))}"


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % percentile interval of the median, by resampling the values; None for fewer than two."""
    if len(values) < 2:
        return None
    numbers = np.random.default_rng(0)
    medians = np.median(numbers.choice(values, size=(_NUM_RESAMPLES, len(values))), axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), float(high)


def _time_row(side: Sequence[LabeledRun]) -> list[str]:
    reached = [run.seconds_to_target for run in side]
    known = [seconds for seconds in reached if seconds is not None]
    spread = f"{duration_text(min(known))} to {duration_text(max(known))}" if len(known) > 1 else ""
    median = duration_text(median_run(side).seconds_to_target)
    each = ["not reached" if seconds is None else duration_text(seconds) for seconds in reached]
    return [side[0].label, median, spread, f"{len(known)} of {len(side)}", *each]


def _training(run: LabeledRun) -> dict[str, Any]:
    names = ("seconds_per_epoch", "images_per_s", "wait_share", "wall_s", "peak_host_bytes")
    return {
        **{name: getattr(run, name) for name in names},
        "stages": {stage.name: stage.seconds for stage in run.stages},
        "dice_history": [list(point) for point in run.dice_history],
    }


def _factor(factors: Sequence[float]) -> dict[str, Any]:
    low, high = bootstrap_interval(factors) or (None, None)
    median = statistics.median(factors) if factors else None
    return {"median": median, "low": low, "high": high, "n": len(factors), "rounds": list(factors)}


def _gain(parity: Parity | None) -> dict[str, Any] | None:
    if parity is None:
        return None
    row = parity.overall
    return {"mean": row.difference, "low": row.low, "high": row.high, "n": row.n, "unit": parity.unit}
