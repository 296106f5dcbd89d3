"""What a comparison needs to know of a training, from wherever it comes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import dotted
from voxelocity.core.time_parts import TimeShare
from voxelocity.report.records import RunFacts
from voxelocity.report.summary import mean_dice, part_shares, stage_shares, throughput

DiceHistory = tuple[tuple[float, float], ...]


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
        settings: what decides the result, nested plain values.
        reasons: why settings have their values, by dotted key.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
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
    """A run read from its folder, ready to be compared.

    Args:
        run: the facts.
        label: what to call it.
        target_dice: the Dice to time; the run's own target where not given.
    """
    history = tuple((record.time_s, record.mean_dice) for record in run.validations if math.isfinite(record.mean_dice))
    target = run.target_dice if target_dice is None else target_dice
    speed = throughput(run)
    return LabeledRun(
        label=label,
        seconds_to_target=None if target is None else seconds_to_reach(history, target),
        seconds_per_epoch=speed.seconds_per_epoch,
        images_per_s=speed.images_per_s,
        wall_s=run.seconds,
        wait_share=speed.wait_share,
        dice_history=history,
        final_dice=mean_dice(run),
        peak_host_bytes=run.finish.peak_host_bytes if run.finish else None,
        peak_device_bytes=run.finish.peak_device_bytes if run.finish else None,
        stages=stage_shares(run),
        step_parts=_step_parts(run),
        settings={**dotted(run.plan), **({} if run.seed is None else {"seed": run.seed})},
        reasons={choice.key: choice.reason for choice in run.choices},
        machine={**run.environment, **({"device": run.device} if run.device else {})},
        notes=() if run.dataset.held_out else ("The Dice was measured on training cases.",),
    )


def median_run(runs: Sequence[LabeledRun]) -> LabeledRun:
    """The first run with the medians of all in place of its figures, and the mean of their final Dice.

    The time to the target is None where fewer than half of the runs got there.
    """
    dice = [run.final_dice for run in runs if run.final_dice is not None]
    names = ("seconds_per_epoch", "images_per_s", "wall_s", "wait_share", "peak_host_bytes", "peak_device_bytes")
    figures: dict[str, Any] = {name: median_or_none([getattr(run, name) for run in runs]) for name in names}
    to_target = statistics.median([math.inf if (s := run.seconds_to_target) is None else s for run in runs])
    return replace(
        runs[0],
        seconds_to_target=to_target if math.isfinite(to_target) else None,
        each_to_target=tuple(run.seconds_to_target for run in runs),
        final_dice=statistics.fmean(dice) if dice else None,
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


def differing_settings(runs: Sequence[LabeledRun]) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Dotted settings whose values differ, with a value per run (None where a run has no such setting), and how many
    are equal in all.
    """
    flat = [dotted(run.settings) if run.settings else {} for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    differing = {}
    for key in keys:
        values = tuple(plain_data(settings.get(key), where="settings") for settings in flat)
        if any(value != values[0] for value in values[1:]):
            differing[key] = values
    return differing, len(keys) - len(differing)
