"""`tune --for time-to-dice`: candidates that change results compared by trainings, their page, and the choice kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.planning import Planned
from voxelocity.report import comparison_document
from voxelocity.tuning.dice import DiceResult, DiceTrial, Length, affordable, candidates, compare_by_dice
from voxelocity.tuning.job import TuneJob
from voxelocity.tuning.keeping import keep_settings
from voxelocity.tuning.page import run_curves
from voxelocity.tuning.result import write_result
from voxelocity.tuning.space import Settings
from voxelocity.tuning.study import RUNS_FOLDER, lock_folder
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.quantities import count_text, dice_text, duration_text, value_text
from voxelocity_observe.document import Document
from voxelocity_observe.document.blocks import Block, Code, Section, Table, Text

_BUDGET_S = 600.0


@dataclass(frozen=True, kw_only=True)
class DiceTuning:
    """What a tuning by Dice came to.

    Attributes:
        folder: with the page and the runs.
        planned: the plan that it began with.
        found: the trainings and their judgment.
        kept: the file in which the plan finds the settings; None if they were not kept.
    """

    folder: Path
    planned: Planned
    found: DiceResult
    kept: Path | None

    @property
    def values(self) -> Mapping[str, Any]:
        """Keys of the plan that change; empty if no candidate was clearly better."""
        return self.found.candidate if self.found.is_taken else {}


def tune_by_dice(job: TuneJob, *, budget: Length | None = None, found: Sequence[Settings] | None = None) -> DiceTuning:
    """Compares candidates by short trainings and writes the page. Later plans take what is better.

    Args:
        job: the plan's own settings, and what the user asked for.
        budget: of all trainings together; the request's or ten minutes if not given.
        found: the candidates, the plan's own settings first; chosen if not given.

    Raises:
        ConfigError: the budget is too short to compare anything.
        OutputError: the folder cannot be written, or another process is tuning there.
    """
    planned, request = job.planned, job.request
    budget = budget or Length(seconds=request.limit_s or _BUDGET_S)
    found, first = affordable(candidates(planned) if found is None else found, budget, num_pairs=request.num_pairs)
    folder = request.out
    with lock_folder(folder):
        if request.overwrite:
            shutil.rmtree(folder / RUNS_FOLDER, ignore_errors=True)
        result = compare_by_dice(
            planned, folder, found, first=first, num_pairs=request.num_pairs, limits=job.limits,
            on_training=lambda training: job.say(training_line(training)),
        )  # fmt: skip
        kept = None
        if job.keeps and result.is_taken:
            peaks = [training.outcome for training in result.trainings if training.settings == result.candidate]
            peak = max((outcome.peak_device_bytes or outcome.peak_host_bytes for outcome in peaks), default=0)
            kept = keep_settings(
                planned, result.candidate, searched={key for values in found for key in values}, goal="time to a Dice",
                ratios=result.time_ratios, peak_bytes=peak, cache=job.cache,
            )  # fmt: skip
        tuning = DiceTuning(folder=folder, planned=planned, found=result, kept=kept)
        write_result(dice_document(tuning), folder)
    return tuning


def dice_document(tuning: DiceTuning) -> Document:
    """The page as plain data: both sides as two runs are compared, and all trainings."""
    found, name = tuning.found, tuning.planned.cases.name
    title = f"Tuned for time to a Dice: {name}"
    sections = [
        Section(title="Curves of the first pair", blocks=run_curves([*found.before[:1], *found.after[:1]])),
        Section(title="Trainings", blocks=[_trainings(found.trainings)]),
        Section(title="To use it", blocks=_use(tuning)),
    ]
    summary = (
        f"{count_text(len(found.trainings), 'training')} in processes of their own: of the candidates, the better half "
        f"by Dice went on to trainings twice as long; {count_text(len(found.before), 'pair')} of trainings with one "
        "seed each then compared the last one with the plan's own settings."
    )
    if not found.before:
        verdict = (
            "No candidate reached a higher Dice in the same time, so the plan's own settings stay."
            if any(training.outcome.is_finished for training in found.trainings)
            else "No training finished; the table says why."
        )
        return Document(kind="tuning", title=title, verdict=verdict, summary=summary, sections=sections)
    return comparison_document(
        found.labeled(),
        title,
        target_dice=found.target_dice,
        target_reason="the highest that all runs reached during training, rounded down",
        parity=found.parity,
        notices=[_notice(found)],
        sections=sections,
        summary=summary,
    )


def _notice(found: DiceResult) -> str:
    what = ", ".join(f"{key} {value_text(value, key)}" for key, value in found.candidate.items())
    if found.is_taken:
        return (
            f"Taken: {what}. It was chosen by the Dice of cases that are held out, so later scores on these cases are "
            "somewhat higher than on new ones."
        )
    if found.has_failures:
        return f"Not taken: {what} did not finish every training."
    return f"Not taken: {what} is neither clearly better nor the same and clearly faster there."


def _trainings(trainings: Sequence[DiceTrial]) -> Block:
    rows = []
    for number, training in enumerate(trainings, start=1):
        changed = ", ".join(f"{key} {value_text(value, key)}" for key, value in training.settings.items())
        outcome = training.outcome
        reason = "" if outcome.is_finished else _failure(outcome)
        cells = [str(training.rung), str(training.seed), duration_text(outcome.seconds), dice_text(training.dice)]
        rows.append([str(number), changed or "the plan's own", *cells, reason])
    return Table(
        caption="Trainings", heads=["Training", "Settings", "Rung", "Seed", "Time", "Dice", "Failed"], rows=rows,
        text_columns=frozenset({1, 6}), hides_caption=True,
    )  # fmt: skip


def _use(tuning: DiceTuning) -> list[Block]:
    if not tuning.values:
        return []
    sets = " ".join(f"--set {key}={json.dumps(value)}" for key, value in tuning.values.items())
    kept = f"Kept in {tuning.kept}; --no-tuned leaves them out. " if tuning.kept else ""
    return [Text(text=f"{kept}In another place:"), Code(text=sets)]


def training_line(training: DiceTrial) -> str:
    """A training in one line, for the terminal."""
    what = ", ".join(f"{key.rpartition('.')[2]} {value_text(value, key)}" for key, value in training.settings.items())
    outcome = training.outcome
    result = f"Dice {dice_text(training.dice)}" if outcome.is_finished else _failure(outcome)
    return (
        f"rung {training.rung} seed {training.seed}: {result} in {duration_text(outcome.seconds)}  {what or 'the plan'}"
    )


def _failure(outcome: TrialOutcome) -> str:
    return f"{outcome.kind.replace('_', ' ')}: {outcome.reason.partition(chr(10))[0]}"
