"""What a tuning came to, as a record and in lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity.core.requests.tune import Goal
from voxelocity.planning import Machine, Planned
from voxelocity.report import RunFacts
from voxelocity.tuning.costs import RATE, RunTime, peak_bytes
from voxelocity.tuning.space import Knob, Settings
from voxelocity.tuning.store import TrialRecord
from voxelocity.tuning.study import StudyResult
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text, rate_text, value_text
from voxelocity_observe.document import Document, write_figures, write_page

PAGE, RECORD = "tune.html", "tune.json"
"""Of a tuning's folder: the page, and its figures for programs."""


def write_result(document: Document, folder: Path) -> Path:
    """Writes the page of a tuning and, for programs, its figures; returns the page.

    Raises:
        OutputError: one cannot be written.
    """
    write_figures(document, folder / RECORD)
    return write_page(document, folder / PAGE)


@dataclass(frozen=True, kw_only=True)
class MeasuredTuning:
    """What a tuning by trials came to, of our own training or of another program.

    Attributes:
        folder: with the study, the page and what each trial printed.
        goal: what was tuned for.
        subject: what was tuned.
        where: the machine, for a reader.
        owner: whose settings the search begins with.
        smaller: how a run can be made smaller that does not fit.
        note: what the page says below the settings.
        knobs: what was searched.
        study: the trials and the winner.
        time: of a run, by what a trial measured.
        memory_limit_bytes: 0 if none was set.
        on_device: whether memory of the device counts, not of the host.
        values: keys of the configuration whose values change, with the new ones; empty if nothing was better.
        kept: the file in which the plan finds them, or the folder of what they replaced; None if they were not kept.
        runs: a training with the plan's own settings and one with the tuned ones, if they were asked for.
    """

    folder: Path
    goal: Goal
    subject: str
    where: str
    owner: str
    smaller: str
    note: str
    knobs: tuple[Knob, ...]
    study: StudyResult
    time: RunTime
    memory_limit_bytes: int
    on_device: bool
    values: Mapping[str, Any]
    kept: Path | None
    runs: tuple[RunFacts, ...] = ()

    @property
    def time_ratios(self) -> tuple[float, ...]:
        """Seconds of a run with the tuned settings over seconds with the owner's, by round of confirmations."""
        pairs = zip(self.study.winner_trials, self.study.default_trials, strict=False)
        return tuple(
            self.time.seconds(ours.outcome) / self.time.seconds(theirs.outcome)
            for ours, theirs in pairs
            if ours.outcome.is_finished and theirs.outcome.is_finished
        )


@dataclass(frozen=True, kw_only=True)
class TuneResult(MeasuredTuning):
    """What a tuning of our own runs came to.

    Attributes:
        planned: the plan that it began with.
    """

    planned: Planned


def machine_text(machine: Machine) -> str:
    """The device that trials run on, for a reader."""
    return machine.device_name if machine.device == "cuda" else f"{count_text(machine.num_cpus, 'core')} of a CPU"


def trial_line(record: TrialRecord, knobs: Sequence[Knob], *, on_device: bool) -> str:
    """A trial in one line, for the terminal, with what differs from the plan."""
    return (
        f"{record.number:3d} {record.phase:<8}{outcome_text(record.outcome, on_device=on_device)}  "
        f"{changes_text(record.settings, knobs) or 'as planned'}"
    )


def changes_text(settings: Settings, knobs: Sequence[Knob]) -> str:
    """What differs from the default settings; "" if nothing does."""
    changed = changed_values(settings, knobs)
    return ", ".join(f"{key} {value_text(value, key)}" for key, value in changed.items())


def changed_values(settings: Settings, knobs: Sequence[Knob]) -> dict[str, Any]:
    """The settings that differ from the default ones."""
    return {knob.name: settings[knob.name] for knob in knobs if settings[knob.name] != knob.default}


def outcome_text(outcome: TrialOutcome, *, on_device: bool) -> str:
    """What became of a trial, in a few words."""
    took = f"in {duration_text(outcome.seconds)}"
    if not outcome.is_finished:
        return f"{outcome.kind.replace('_', ' ')} {took}"
    rate = statistics.median(outcome.measurements[RATE])
    return f"{rate_text(rate)} images/s, {bytes_text(peak_bytes(outcome, on_device=on_device))}, {took}"
