"""`tune --only learning-rate`: the range test of a plan, its page, and the choice kept for later plans."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxelocity.planning import Planned
from voxelocity.tuning.job import TuneJob
from voxelocity.tuning.keeping import keep_value
from voxelocity.tuning.learning_rate import LOSS, RATE, RangeTest, judge
from voxelocity.tuning.result import write_result
from voxelocity.tuning.study import TRIALS_FOLDER, lock_folder
from voxelocity.tuning.trial import TrialOutcome, run_trial
from voxelocity_observe.core.errors import ConfigError, VoxelocityError
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import duration_text
from voxelocity_observe.document import Document
from voxelocity_observe.document.blocks import Block, Card, Chart, Code, LegendEntry, Section, Text
from voxelocity_observe.document.charts import Series, xy_chart

KEY = "optimizer.learning_rate"


@dataclass(frozen=True, kw_only=True)
class RateResult:
    """What the range test of a plan came to.

    Attributes:
        folder: with the page and what the test printed.
        planned: the plan.
        test: rates, losses and the choice.
        outcome: of the process that made the test.
        kept: the file in which the plan finds the rate; None if it was not kept.
    """

    folder: Path
    planned: Planned
    test: RangeTest
    outcome: TrialOutcome
    kept: Path | None

    @property
    def values(self) -> Mapping[str, Any]:
        """The key and the rate; empty if nothing follows from the test."""
        return {} if self.test.chosen is None else {KEY: self.test.chosen}


def find_learning_rate(job: TuneJob) -> RateResult:
    """Makes the range test in a process of its own and writes its page. Later plans take its rate if that is asked for.

    Raises:
        VoxelocityError: the test did not finish; its last lines are in the text.
        OutputError: the folder cannot be written, or another process is tuning there.
    """
    task, folder, limit_s = job.measure_task(), job.request.out, job.request.limit_s
    with lock_folder(folder), tempfile.TemporaryDirectory(prefix="voxelocity-tune-") as private:
        place, file = folder / TRIALS_FOLDER, Path(private) / "range.task"
        place.mkdir(exist_ok=True)
        task.write(file)
        answer = place / "learning-rate.json"
        outcome = run_trial(
            [sys.executable, "-m", "voxelocity.tuning.learning_rate", str(file), str(answer)],
            answer=answer,
            log=answer.with_suffix(".log"),
            limits=replace(job.limits, seconds=min(job.limits.seconds, limit_s or math.inf)),
        )
        if outcome.kind == "hung" and limit_s:
            raise ConfigError(
                f"tune: {duration_text(limit_s)} are too short for the range test, which was not done by then; give a "
                "longer --time-budget, or none"
            )
        if not outcome.is_finished:
            raise VoxelocityError(
                f"tune: the range test did not finish ({outcome.kind.replace('_', ' ')}): {outcome.reason}; see "
                f"{answer.with_suffix('.log')}"
            )
        test = judge(outcome.measurements[RATE], outcome.measurements[LOSS])
        kept = None
        if job.request.keep and test.chosen is not None:
            kept = keep_value(task.planned, KEY, test.chosen, reason=test.reason, cache=job.cache)
        result = RateResult(folder=folder, planned=task.planned, test=test, outcome=outcome, kept=kept)
        write_result(rate_document(result), folder)
    return result


def rate_document(result: RateResult) -> Document:
    """The page as plain data."""
    test, planned = result.test, result.planned.plan.optimizer.learning_rate
    chosen = "none" if test.chosen is None else f"{test.chosen:g}"
    verdict = (
        "The loss did not fall at any rate, so the plan's learning rate stays."
        if test.chosen is None
        else f"The range test suggests a learning rate of {chosen}; the plan has {planned:g}."
    )
    marked = [] if test.chosen is None else [test.chosen]
    legend = [LegendEntry(name="loss, smoothed", color="var(--accent)")]
    legend += [LegendEntry(name=f"chosen: {chosen}", color="var(--chart-target)", is_dashed=True)] if marked else []
    chart = Chart(
        title="Loss while the learning rate grows",
        svg=xy_chart(
            "range",
            [Series(points=list(zip(test.rates, test.losses, strict=True)))],
            x_label="learning rate",
            y_label="loss",
            marked=marked,
            are_lines=True,
            has_log_x=True,
        ),
        alt=f"Line chart: loss over the learning rate, least at {test.least:.1e}.",
        legend=legend,
    )
    set_option = f"--set {KEY}={chosen}"
    use: list[Block] = []
    if test.chosen is not None:
        taken = (
            "Later plans on this machine for this network, data set, optimizer, loss and schedule use it; --no-tuned "
            "ignores it."
        )
        left = "The plan keeps its own rate. The option below sets the tuned rate for one run, --keep for later plans."
        use = [Text(text=taken if result.kept else left), Code(text=set_option)]
    return Document(
        kind="tuning",
        title=f"Learning rate: {result.planned.cases.name}",
        verdict=verdict,
        summary=f"{len(test.rates)} training steps in {duration_text(result.outcome.seconds)}: {test.reason}.",
        notices=[
            "A range test covers only the first steps. To know whether a rate is better at the end of a training, "
            "compare two runs with voxelocity report."
        ],
        cards=[
            Card(name="Chosen", value=chosen, note="the smaller of the next, and a tenth of the one after it"),
            Card(name="Fell fastest at", value=f"{test.steepest:.1e}"),
            Card(name="Least at", value=f"{test.least:.1e}"),
            Card(name="The plan has", value=f"{planned:g}"),
        ],
        sections=[Section(title="Curve", blocks=[chart]), Section(title="To use it", blocks=use)],
        footer="Smith, arXiv:1506.01186; the choice is the smaller of the two that fastai offers.",
        values=plain_data({"test": test, "planned": planned, "seconds": result.outcome.seconds}, where="tune"),
    )
