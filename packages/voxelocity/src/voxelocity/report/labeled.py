"""What a comparison needs to know of trainings: each one labeled, and two runs prepared for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxelocity.core.records import CaseScore
from voxelocity.report.parity import MARGIN_DICE, MARGIN_MM, Parity, paired_parity
from voxelocity.report.records import RunFacts, ValidationRecord
from voxelocity.report.summary import mean_dice, part_shares, stage_shares, throughput
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import count_text, dotted
from voxelocity_observe.core.time_parts import TimeShare

DiceHistory = tuple[tuple[float, float], ...]

_FEWEST_VALIDATIONS = 3
_LOAD_FACTOR = 1.5
_TARGET_STEPS = 100
"""A target that is chosen is a multiple of a hundredth."""


@dataclass(frozen=True, kw_only=True)
class LabeledRun:
    """What a comparison needs to know of one training. It needs no run folder.

    Attributes:
        label: what people call it.
        seconds_to_target: until a validation reached the target; None where none did or none was set.
        each_to_target: the same of every training that this run stands for; empty where it stands for itself.
        seconds_per_epoch: of one pass over the training cases.
        images_per_s: patches trained on a second.
        wall_s: the whole training.
        wait_share: part of the training time spent waiting for data.
        dice_history: (seconds since the start, mean foreground Dice) of each validation, oldest first.
        final_dice: of the result; the last validation's where not given.
        peak_host_bytes: most main memory at once.
        peak_device_bytes: most memory of tensors on accelerators at once.
        stages: wall time by stage.
        step_parts: time of one optimizer step by activity.
        unlearned: why it, or one of the trainings it stands for, is too short to be scored; "" where none is.
        settings: what decides the result, nested plain values.
        reasons: why settings have their values, by dotted key.
        judged: the cases behind `final_dice`, by id; empty where not known.
        machine: where it ran and with which versions, plain values.
        notes: sentences to show with it.
    """

    label: str
    seconds_to_target: float | None = None
    each_to_target: tuple[float | None, ...] = ()
    seconds_per_epoch: float | None = None
    images_per_s: float | None = None
    wall_s: float | None = None
    wait_share: float | None = None
    dice_history: DiceHistory = ()
    final_dice: float | None = None
    peak_host_bytes: float | None = None
    peak_device_bytes: float | None = None
    stages: tuple[TimeShare, ...] = ()
    step_parts: tuple[TimeShare, ...] = ()
    unlearned: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    judged: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def best_dice(self) -> float | None:
        """The highest mean Dice of any validation."""
        return max((dice for _, dice in self.dice_history if math.isfinite(dice)), default=None)

    @property
    def last_dice(self) -> float | None:
        """The Dice of the result."""
        if self.final_dice is not None or not self.dice_history:
            return self.final_dice
        return self.dice_history[-1][1]


def label_run(run: RunFacts, label: str, *, target_dice: float | None = None) -> LabeledRun:
    """A run read from its folder, ready to be compared; `target_dice` is timed, or else the run's own target."""
    history = tuple((record.time_s, record.mean_dice) for record in run.validations if math.isfinite(record.mean_dice))
    target = run.target_dice if target_dice is None else target_dice
    speed = throughput(run)
    notes = () if run.dataset.held_out else ("The Dice was measured on training cases.",)
    shown = history
    if run.unlearned:
        # When a validation reached the target is a fact all the same.
        shown, notes = (), (f"It has no score: {run.unlearned}.", *notes)
    return LabeledRun(
        label=label,
        seconds_to_target=None if target is None else seconds_to_reach(history, target),
        seconds_per_epoch=speed.seconds_per_epoch,
        images_per_s=speed.images_per_s,
        wall_s=run.seconds,
        wait_share=speed.wait_share,
        dice_history=shown,
        final_dice=mean_dice(run),
        peak_host_bytes=run.finish.peak_host_bytes if run.finish else None,
        peak_device_bytes=run.finish.peak_device_bytes if run.finish else None,
        stages=stage_shares(run),
        step_parts=_step_parts(run),
        settings={**dotted(run.plan), **({} if run.seed is None else {"seed": run.seed})},
        reasons={choice.key: choice.reason for choice in run.choices},
        unlearned=run.unlearned,
        judged=tuple(sorted(score.case_id for score in scores_to_compare(run))),
        machine={**run.environment, **({"device": run.device} if run.device else {})},
        notes=notes,
    )


def unlearned_notices(runs: Sequence[LabeledRun]) -> list[str]:
    """A sentence for each run that stands for trainings too short to be scored."""
    return [f"{run.label} has no score: {run.unlearned}." for run in runs if run.unlearned]


def scores_to_compare(run: RunFacts) -> tuple[CaseScore, ...]:
    """The scores of the final validation; none of a training that is too short to be scored."""
    return () if run.unlearned else run.scores


def median_run(runs: Sequence[LabeledRun]) -> LabeledRun:
    """The first run with the medians of all in place of its figures, and the mean of their final Dice.

    The time to the target is None where half of the runs or more did not get there.
    """
    dice = [run.final_dice for run in runs if run.final_dice is not None]
    marks = [run.unlearned for run in runs if run.unlearned]
    names = ("seconds_per_epoch", "images_per_s", "wall_s", "wait_share", "peak_host_bytes", "peak_device_bytes")
    figures: dict[str, Any] = {name: median_or_none([getattr(run, name) for run in runs]) for name in names}
    to_target = statistics.median([math.inf if (s := run.seconds_to_target) is None else s for run in runs])
    return replace(
        runs[0],
        seconds_to_target=to_target if math.isfinite(to_target) else None,
        each_to_target=tuple(run.seconds_to_target for run in runs),
        final_dice=statistics.fmean(dice) if dice and not marks else None,
        unlearned=marks[0] if marks else "",
        **figures,
    )


def median_or_none(values: Sequence[float | None]) -> float | None:
    """The median; None where one of the values is not known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _step_parts(run: RunFacts) -> tuple[TimeShare, ...]:
    num_steps = sum(record.num_steps for record in run.steps if record.parts)
    return tuple(replace(part, seconds=part.seconds / num_steps) for part in part_shares(run)) if num_steps else ()


def seconds_to_reach(history: Sequence[tuple[float, float]], target_dice: float) -> float | None:
    """Seconds until the first validation at or above the target; None where there was none."""
    return next((seconds for seconds, dice in history if dice >= target_dice), None)


@dataclass(frozen=True, kw_only=True)
class PairedRuns:
    """Two runs, the one to compare with first.

    Attributes:
        runs: both, labeled.
        target_dice: the Dice whose time is compared; None where they have none in common.
        target_reason: where it comes from.
        parity: accuracy on the cases that both were judged on; None where `notices` say why not.
        notices: what makes the figures hard to compare.
    """

    runs: tuple[LabeledRun, LabeledRun]
    target_dice: float | None
    target_reason: str
    parity: Parity | None
    notices: tuple[str, ...]


def pair_runs(
    first: RunFacts,
    second: RunFacts,
    *,
    target_dice: float | None = None,
    margin_dice: float = MARGIN_DICE,
    margin_mm: float = MARGIN_MM,
) -> PairedRuns:
    """Both runs labeled by their folders, with a target that both reached and their scores paired by case.

    A target is chosen where none is given. Differences up to the margins, of Dice and of HD95, count as none.

    Raises:
        InputError: both are the same run, the data sets differ, or a target or margin is out of range.
    """
    _check_numbers(target_dice, margin_dice, margin_mm)
    _check_comparable(first, second)
    target, reason = _target(first, second, target_dice)
    labels = labels_of([first.folder, second.folder])
    parity, why_not = _parity(first, second, labels, margin_dice, margin_mm)
    labeled = {labels[0]: first, labels[1]: second}
    one, other = (label_run(run, label, target_dice=target) for label, run in labeled.items())
    return PairedRuns(
        runs=(one, other),
        target_dice=target,
        target_reason=reason,
        parity=parity,
        notices=(
            *_data_notices(first, second, labels),
            *_status_notices(labeled),
            *_validation_notices(labeled, target),
            *_share_notices(labeled),
            *_load_notices(labeled),
            *why_not,
        ),
    )


def highest_common_target(bests: Sequence[ValidationRecord | None]) -> float | None:
    """The highest Dice that all best validations reached, rounded down to a hundredth; None where that is 0."""
    reached = [0.0 if best is None else best.mean_dice for best in bests]
    # A little above, or 0.29 times 100 would be 28.
    chosen = math.floor(min(reached, default=0.0) * _TARGET_STEPS + 1e-6) / _TARGET_STEPS
    return chosen if chosen > 0.0 else None


def labels_of(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart: folder names, with parents where these are alike."""
    parts = [Path(folder).absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts))):
        labels = ["/".join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def _check_numbers(target_dice: float | None, margin_dice: float, margin_mm: float) -> None:
    if target_dice is not None and not 0.0 < target_dice <= 1.0:
        raise InputError(f"report: the target {target_dice:g} is not a Dice; give a number above 0 and up to 1")
    if not 0.0 < margin_dice <= 1.0:
        raise InputError(
            f"report: the margin {margin_dice:g} is not a difference of Dice; give a number above 0 and up to 1"
        )
    if not 0.0 < margin_mm < math.inf:
        raise InputError(f"report: the margin {margin_mm:g} mm is not a distance; give a number above 0")


def _check_comparable(first: RunFacts, second: RunFacts) -> None:
    if first.folder.resolve() == second.folder.resolve():
        raise InputError(f"report: {first.folder} and {second.folder} are the same run; name two to compare them")
    differing = [
        f"{name} {a} and {b}"
        for name, a, b in (
            ("classes", ", ".join(first.dataset.classes) or "none", ", ".join(second.dataset.classes) or "none"),
            ("channels", ", ".join(first.dataset.channels) or "none", ", ".join(second.dataset.channels) or "none"),
        )
        if a != b
    ]
    if differing:
        raise InputError(
            f"report: {first.folder} was trained on {first.dataset.name} and {second.folder} on {second.dataset.name}: "
            f"different data sets ({'; '.join(differing)}), whose figures cannot be compared; name two runs on the "
            "same data set"
        )


def _target(first: RunFacts, second: RunFacts, given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, "asked for"
    own = {run.target_dice for run in (first, second)}
    if len(own) == 1 and (target := own.pop()) is not None:
        return target, "the target of both runs"
    if min(len(first.validations), len(second.validations)) < _FEWEST_VALIDATIONS:
        # With this few validations, the time of one says little about when a Dice was reached.
        return None, ""
    chosen = highest_common_target([run.best_validation for run in (first, second)])
    return chosen, "" if chosen is None else "the highest that both runs reached during training, rounded down"


def _parity(
    first: RunFacts, second: RunFacts, labels: Sequence[str], margin_dice: float, margin_mm: float
) -> tuple[Parity | None, list[str]]:
    """The parity, or a notice that says why there is none."""
    runs = {labels[0]: first, labels[1]: second}
    if short := "; ".join(f"{label} has no score: {run.unlearned}" for label, run in runs.items() if run.unlearned):
        return None, [f"Accuracy is not compared: {short}."]
    without = [label for label, run in runs.items() if not run.scores]
    if without:
        return None, [
            f"Accuracy is not compared: {' and '.join(without)} {'has' if len(without) == 1 else 'have'} no "
            "scores of a final validation."
        ]
    if first.dataset.held_out != second.dataset.held_out:
        seen = labels[0] if second.dataset.held_out else labels[1]
        return None, [
            f"Accuracy is not compared: {seen} was scored on its training cases, the other run on held-out cases."
        ]
    parity = paired_parity(first.scores, second.scores, margin_dice=margin_dice, margin_mm=margin_mm)
    if parity is None:
        return None, [
            f"Accuracy is not compared: the {count_text(len(first.scores), 'case')} of {labels[0]} (fold "
            f"{first.dataset.fold}) and the {count_text(len(second.scores), 'case')} of {labels[1]} (fold "
            f"{second.dataset.fold}) have none in common; train both with one fold held out."
        ]
    return parity, []


def _data_notices(first: RunFacts, second: RunFacts, labels: Sequence[str]) -> list[str]:
    notices = []
    one, other = first.dataset, second.dataset
    if (one.name, one.path, one.num_cases) != (other.name, other.path, other.num_cases):
        words = [f"{label}: {data.name}, {count_text(data.num_cases, 'case')}, {data.path or 'no folder stored'}"
                 for label, data in zip(labels, (one, other), strict=True)]  # fmt: skip
        notices.append(
            f"The data sets have the same classes but differ ({'; '.join(words)}); the runs are comparable only if "
            "their scans are equal."
        )
    if (one.fold, one.num_training) != (other.fold, other.num_training):
        notices.append(
            f"The runs were trained on different cases: {labels[0]} on {one.num_training:,} (fold {one.fold}), "
            f"{labels[1]} on {other.num_training:,} (fold {other.fold})."
        )
    if not one.held_out and not other.held_out:
        notices.append(
            "Both runs were scored on their training cases; the scores do not show which is better on new scans."
        )
    for label, run in zip(labels, (first, second), strict=True):
        if num_seen := sum(score.case_id in run.dataset.exposed for score in run.scores):
            notices.append(
                f"The model that {label} was started from may have learned from {num_seen} of the "
                f"{count_text(len(run.scores), 'case')} it is judged on; if so, its Dice is too high."
            )
    return notices


def _status_notices(runs: Mapping[str, RunFacts]) -> list[str]:
    ends = {"unfinished": "has not finished", "interrupted": "was interrupted"}
    return [
        f"{label} {ends[run.status]}: its figures cover only the training so far."
        for label, run in runs.items()
        if run.status in ends
    ]


def _validation_notices(runs: Mapping[str, RunFacts], target: float | None) -> list[str]:
    few = [
        f"{label} {count_text(len(run.validations), 'time')}"
        for label, run in runs.items()
        if len(run.validations) < _FEWEST_VALIDATIONS
    ]
    if target is not None or not few:
        return []
    return [
        f"No time to a Dice is given: there were too few validations during training ({', '.join(few)}); train with "
        "a larger "
        "train.validation_share, or with train.validate_every_steps."
    ]


def _share_notices(runs: Mapping[str, RunFacts]) -> list[str]:
    """Says where validations on the way took other numbers of cases, which a budget decides."""
    found = {label: {record.num_cases for record in run.validations} for label, run in runs.items()}
    every = set[int | None]().union(*found.values())
    if None in every or not all(found.values()) or len(every) == 1:
        return []
    texts = [f"{' or '.join(sorted(map(str, counts)))} in {label}" for label, counts in found.items()]
    return [
        f"The validations on the way were not of equally many cases ({', '.join(texts)}); curves and times to a Dice "
        "are not directly comparable."
    ]


def _load_notices(runs: Mapping[str, RunFacts]) -> list[str]:
    """Says where other programs had more of the machine in one of the runs."""
    found = {label: run.finish.load_average if run.finish else None for label, run in runs.items()}
    loads = {label: load for label, load in found.items() if load is not None}
    low, high = min(loads.values(), default=0.0), max(loads.values(), default=0.0)
    if len(loads) < len(runs) or high - low < 1.0 or high < _LOAD_FACTOR * low:
        return []
    texts = [f"{load:.1f} in {label}" for label, load in loads.items()]
    return [
        f"The load of the machine differed (load average {', '.join(texts)}); times and rates of the runs are "
        "not directly comparable."
    ]
