"""All sides, seed by seed, each round begun by another side; results are kept even if a later round fails."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.records import CaseScore
from voxelocity.data.decode import read_case
from voxelocity.infer import SPEC_NAME, Predictor, load_model
from voxelocity.infer.switches import switches_of
from voxelocity.metrics import case_score, summarize
from voxelocity.planning import Planned, model_spec
from voxelocity.report import (
    LabeledRun,
    Parity,
    comparison_document,
    median_run,
    paired_trainings,
    unlearned_notices,
    with_command,
)
from voxelocity.step import build_network
from voxelocity.training.scoring import score_cases
from voxelocity_lab.bench.comparison import Comparison, Figure
from voxelocity_lab.bench.race.sides import LABELS, Race, SideName, train_side, weights_of
from voxelocity_observe.core.quantities import NOT_AVAILABLE, duration_text
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document import write_page
from voxelocity_observe.document.blocks import Document, Section, Table, Text

_FEW_SEEDS = 3


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
    sides: tuple[tuple[LabeledRun, ...], ...]
    seeds: tuple[int, ...]
    scores: tuple[tuple[tuple[CaseScore, ...], ...], ...] = ()

    @property
    def runs(self) -> tuple[LabeledRun, ...]:
        """Each side as one run, with the medians over the seeds."""
        return tuple(median_run(side) for side in self.sides)

    def parity(self, side: int = 0) -> Parity | None:
        """Dice of Voxelocity and of another side, paired by seed, or by case where there is one seed."""
        if not self.scores or any(run.unlearned for run in (*self.sides[side], *self.sides[-1])):
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
        }

    def comparison(self, words: str) -> Comparison | None:
        """The same for a benchmark's record, ours first; a target that was not reached counts as the limit.

        Without a target there is nothing to compare where a training was too short to be scored.
        """
        if not self.race.target_dice and any(run.unlearned for side in self.sides for run in side):
            return None
        target, limit_s = self.race.target_dice, self.race.limit_s
        figures = []
        for side in (self.sides[-1], *self.sides[:-1]):
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
            f"n = {len(self.seeds)}: when a training first reaches a target depends on its seed by a third and more. "
            f"With more seeds: {more}"
        )
        hint = "The other figures on this page are medians over the seeds; curves are those of the first seed."
        document = comparison_document(
            self.runs,
            title,
            target_dice=self.race.target_dice or None,
            parity=self.parity(),
            notices=[*unlearned_notices(self.runs), *([few] if len(self.seeds) < _FEW_SEEDS else [])],
            sections=[Section(title="Every seed", blocks=[self.table, Text(text=hint, is_hint=True)])],
            summary=summary,
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
) -> Outcome:
    """Trains every side, ours named last, with every seed, one round each.

    `on_start` is called with the side and the seed before each training, `on_outcome` with the results so far after
    each round.

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
                mean_dice = None if run.unlearned else summarize(scores[name][-1]).mean_dice
                run = replace(run, final_dice=mean_dice)
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


def judge(planned: Planned, weights: Path) -> tuple[CaseScore, ...]:
    """Dice of every held-out case on the scan's own grid, alike for all sides, with the windows of the plan.

    Args:
        planned: whose network the weights are for; MONAI's class of that name has the same.
        weights: a folder of `voxelocity train`, a file with the state of a module, or a folder of predictions.
    """
    holds_predictions = weights.is_dir() and not (weights / SPEC_NAME).exists()
    return tuple(_of_predictions(planned, weights) if holds_predictions else _of_weights(planned, weights))


def _of_predictions(planned: Planned, folder: Path) -> Iterator[CaseScore]:
    """Scores of label files that are named by the place of their case among the held-out ones."""
    cases = planned.cases
    for number, ref in enumerate(cases.split(planned.fold).validation):
        (path,) = folder.glob(f"{number:03d}.nii*")
        both = read_case(replace(ref, images=(path,)), label_values=cases.label_values)
        assert both.label is not None, "held-out cases have labels"
        yield case_score(
            ref.case_id,
            both.image[0].astype(both.label.dtype),
            both.label,
            class_names=cases.class_names,
            spacing_mm=both.grid.spacing_mm,
            tolerance_mm=None,
        )


def _of_weights(planned: Planned, weights: Path) -> Iterator[CaseScore]:
    spec = model_spec(planned)
    if weights.is_dir():
        network, _ = load_model(weights, factory=spec.network.factory)
    else:
        network = build_network(spec.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=0)
        state = torch.load(weights, map_location="cpu", weights_only=True)
        # MONAI's DynUNet registers its blocks twice.
        network.load_state_dict({name: state[name] for name in network.state_dict()})
    machine = planned.machine
    predictor = Predictor(network.eval(), spec, spec.preparation(), device=machine.torch_device)
    held_out = planned.cases.split(planned.fold).validation
    with switches_of(spec, [machine.torch_device]):
        scores = score_cases(predictor, held_out, spec, num_threads=machine.num_cpus, may_measure_surface=lambda: False)
        yield from (score for score, _, _ in scores)


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


def _gain(parity: Parity | None) -> dict[str, Any] | None:
    if parity is None:
        return None
    row = parity.overall
    return {"mean": row.difference, "low": row.low, "high": row.high, "n": row.n, "unit": parity.unit}
