"""Tuning of what changes results: short trainings of equal length, judged by the Dice that they reach.

Successive halving (Jamieson and Talwalkar, AISTATS 2016, arXiv:1502.07943) leaves one candidate. Pairs of trainings,
each with one seed for both sides, then say whether its Dice is that of the plan's own settings (`report.parity`).
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxelocity.core.config import flatten
from voxelocity.planning import Plan, Planned
from voxelocity.report import (
    LabeledRun,
    Parity,
    RunFacts,
    highest_common_target,
    label_run,
    median_run,
    paired_trainings,
    read_run,
    scores_to_compare,
)
from voxelocity.step import OPTIMIZERS
from voxelocity.tuning.space import Settings
from voxelocity.tuning.study import RUNS_FOLDER
from voxelocity.tuning.trial import TrialLimits, TrialOutcome, run_trial
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.quantities import duration_text

# A run that is not done after this many times its length hangs.
_TIMES_LENGTH = 4.0
_START_UP_S = 120.0
_BATCH_FACTORS = (0.5, 2.0, 4.0)
# A shorter training is mostly its own start.
_LEAST_RUN_S = 20.0
# A candidate that is this much quicker to the target is worth taking.
_QUICKER = 0.97


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a training lasts: seconds with everything, or optimizer steps."""

    seconds: float = 0.0
    steps: int = 0

    def times(self, factor: float) -> Length:
        """Longer by this factor."""
        return Length(seconds=factor * self.seconds, steps=round(factor * self.steps))

    def keys(self, *, num_validations: int) -> dict[str, Any]:
        """Keys of the plan."""
        keys: dict[str, Any] = {
            "train.steps": self.steps,
            "train.time_budget_s": self.seconds,
            "train.target_dice": 0.0,
        }
        if self.steps:
            keys["train.validate_every_steps"] = max(1, self.steps // num_validations)
        else:
            keys["train.validation_share"] = 0.1
        return keys


@dataclass(frozen=True, kw_only=True)
class DiceTrial:
    """A training that was tried.

    Attributes:
        rung: of the halving, from 0; the pairs come last.
        settings: keys that differ from the plan's own.
        outcome: its measurements have the Dice of each case.
        run: what its folder says; None if it failed.
    """

    rung: int
    settings: Settings
    seed: int
    outcome: TrialOutcome
    run: RunFacts | None

    @property
    def dice(self) -> float | None:
        """Mean over the cases."""
        return statistics.fmean(self.outcome.measurements["dice"]) if self.outcome.is_finished else None


@dataclass(frozen=True, kw_only=True)
class DiceResult:
    """What the trainings said.

    Attributes:
        trainings: all of them, in order.
        candidate: what was left by the halving; empty if that are the plan's own settings.
        before: trainings with the plan's own settings, one a pair. `after`: with the candidate.
        parity: whether the Dice of both is the same; None without pairs.
        target_dice: the highest that all of the pairs reached; None if there is none.
        is_taken: whether the candidate is better: a higher Dice, or the same one sooner.
    """

    trainings: tuple[DiceTrial, ...]
    candidate: Settings
    before: tuple[RunFacts, ...]
    after: tuple[RunFacts, ...]
    parity: Parity | None
    target_dice: float | None
    is_taken: bool

    @property
    def has_failures(self) -> bool:
        """Whether a training with the candidate did not finish, as one of a later run may not."""
        return any(not trial.outcome.is_finished for trial in self.trainings if trial.settings == self.candidate)

    def labeled(self) -> tuple[LabeledRun, LabeledRun]:
        """Both sides as the comparison of two runs shows them, medians over the pairs."""
        before, after = (
            median_run([label_run(run, label, target_dice=self.target_dice) for run in runs])
            for label, runs in (("before", self.before), ("after", self.after))
        )
        return before, after

    @property
    def time_ratios(self) -> tuple[float, ...]:
        """Seconds to the target with the candidate over seconds with the plan's own, by pair."""
        before, after = self.labeled() if self.before else (None, None)
        if before is None or after is None:
            return ()
        pairs = zip(after.each_to_target, before.each_to_target, strict=True)
        return tuple(ours / theirs for ours, theirs in pairs if ours is not None and theirs)


def candidates(planned: Planned) -> list[dict[str, Any]]:
    """Settings to compare by Dice, the plan's own first: batch sizes with their learning rate, number formats."""
    plan, machine = planned.plan, planned.machine
    size, rate = plan.data.batch_size, plan.optimizer.learning_rate
    power = OPTIMIZERS[plan.optimizer.name].rate_power
    wanted = {max(1, round(factor * size)) for factor in _BATCH_FACTORS} - {size}
    found: list[dict[str, Any]] = [{}]
    for other in sorted(wanted, key=lambda other: abs(math.log(other / size))):
        scaled = float(f"{rate * (other / size) ** power:.3g}")
        found.append({"data.batch_size": other, "optimizer.learning_rate": scaled})
    formats = ["float32", "bfloat16" if machine.fast_bfloat16 else "float16"]
    if machine.device == "cuda" or machine.fast_bfloat16:
        found += [{"precision.compute": name} for name in formats if name != plan.precision.compute]
    if machine.device == "cuda":
        found.append({"backend.tf32": not plan.backend.tf32})
    if plan.data.patch.draws_per_case == 1 and size > 1:
        found.append({"data.patch.draws_per_case": 2})
    return found


def rung_length(budget: Length, num_candidates: int, *, num_pairs: int) -> Length:
    """How long a training of the first rung lasts, so that all rungs and the pairs together take the budget."""
    num_rungs = int(math.log2(num_candidates))
    # Each rung takes about as long as the first; a training of a pair twice as long as one of the last rung.
    units = num_rungs * num_candidates + 2 * num_pairs * 2**num_rungs
    return budget.times(1.0 / units)


def affordable(found: Sequence[Settings], budget: Length, *, num_pairs: int) -> tuple[list[Settings], Length]:
    """As many of the candidates, the first ones, as can train long enough, and how long the first rung lasts.

    Raises:
        ConfigError: the budget is too short for two.
    """
    for number in range(len(found), 1, -1):
        first = rung_length(budget, number, num_pairs=num_pairs)
        if first.steps or first.seconds >= _LEAST_RUN_S:
            return list(found[:number]), first
    needed_s = _LEAST_RUN_S * budget.seconds / rung_length(budget, 2, num_pairs=num_pairs).seconds
    raise ConfigError(
        f"tune: {duration_text(budget.seconds)} are too short to compare trainings by Dice with {num_pairs} pairs; "
        f"give at least --time-budget {math.ceil(needed_s / 60)}m"
    )


def compare_by_dice(
    planned: Planned,
    folder: Path,
    found: Sequence[Settings],
    *,
    first: Length,
    num_pairs: int,
    limits: TrialLimits,
    on_training: Callable[[DiceTrial], None] = lambda training: None,
) -> DiceResult:
    """Trains the candidates, the plan's own settings first, keeps the better half each time, and pairs the last one.

    Trainings that the folder holds from an earlier call are not repeated.

    Args:
        planned: the plan's own settings.
        folder: receives the runs.
        found: candidates, one or more; the first of several is empty.
        first: how long a training of the first rung lasts; each rung doubles it.
        num_pairs: of trainings with the candidate that is left and with the plan's own settings.
        limits: of memory.
        on_training: called after each.
    """
    trainer = TrialTrainer(planned, folder, limits, on_training)
    left, length, rung = [dict(candidate) for candidate in found], first, 0
    while len(left) > 1:
        tried = [trainer.train(rung, settings, planned.plan.seed, length) for settings in left]
        order = sorted((trial for trial in tried if trial.dice is not None), key=lambda trial: -(trial.dice or 0.0))
        if not order:
            break
        left = [dict(trial.settings) for trial in order[: len(left) // 2]]
        length, rung = length.times(2.0), rung + 1
    candidate = left[0]
    # The plan's own settings are a candidate too: where they are left, there is nothing to compare.
    pairs = range(num_pairs) if candidate else range(0)
    before, after = list[RunFacts](), list[RunFacts]()
    for number in pairs:
        seed = planned.plan.seed + number
        # Alternating, so that neither side always comes first.
        order_of_pair: list[Settings] = [{}, candidate] if number % 2 == 0 else [candidate, {}]
        made = {not settings: trainer.train(rung, settings, seed, length, is_pair=True) for settings in order_of_pair}
        own, other = made[True].run, made[False].run
        if own is not None and other is not None:
            before.append(own)
            after.append(other)
    return _judged(tuple(trainer.trainings), candidate, tuple(before), tuple(after))


def _judged(
    trainings: tuple[DiceTrial, ...], candidate: Settings, before: tuple[RunFacts, ...], after: tuple[RunFacts, ...]
) -> DiceResult:
    parity = (
        paired_trainings(*([scores_to_compare(run) for run in runs] for runs in (before, after))) if before else None
    )
    target = highest_common_target([run.best_validation for run in (*before, *after)]) if before else None
    result = DiceResult(
        trainings=trainings, candidate=candidate, before=before, after=after, parity=parity, target_dice=target,
        is_taken=False,
    )  # fmt: skip
    return replace(result, is_taken=is_better(result))


def is_better(result: DiceResult) -> bool:
    """A clearly higher Dice, or the same one clearly sooner; what is undecided, or failed once, is not taken."""
    if result.parity is None or result.parity.overall.difference is None or result.has_failures:
        return False
    overall = result.parity.overall
    if overall.judgment == "different":
        return (overall.difference or 0.0) > 0.0
    ratios = result.time_ratios
    return overall.judgment == "same" and bool(ratios) and statistics.median(ratios) <= _QUICKER


class TrialTrainer:
    """Trains in processes of their own, into folders below one folder.

    Args:
        planned: the plan's own settings.
        folder: receives the runs.
        limits: of memory.
        on_training: called after each.

    Attributes:
        trainings: all of them, in order.
    """

    def __init__(
        self,
        planned: Planned,
        folder: Path,
        limits: TrialLimits,
        on_training: Callable[[DiceTrial], None] = lambda training: None,
    ) -> None:
        self._planned, self._runs, self._limits = planned, folder / RUNS_FOLDER, limits
        self._on_training = on_training
        self.trainings: list[DiceTrial] = []
        self._runs.mkdir(parents=True, exist_ok=True)

    def train(self, rung: int, settings: Settings, seed: int, length: Length, *, is_pair: bool = False) -> DiceTrial:
        """A training with these settings, made now or earlier with the same ones."""
        keys = {
            **flatten(Plan, self._planned.plan.to_plain()),
            **length.keys(num_validations=4),
            **settings,
            "seed": seed,
            "planner.measure": "never",
            "planner.use_tuned": False,
        }
        words = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, value in settings.items()) or "plan"
        out = self._runs / f"{'pair' if is_pair else f'rung-{rung}'}-{words}-seed-{seed}"
        task = {
            "dataset": str(self._planned.cases.root.resolve()),
            "num_folds": max(2, self._planned.cases.num_folds),
            "fold": self._planned.fold,
            "device": self._planned.machine.device,
            "device_limit_bytes": self._limits.device_bytes,
            "out": str(out),
            "keys": keys,
        }
        training = self._earlier(out, task)
        if training is None:
            outcome = self._run(out, task, length)
            training = outcome, read_run(out) if outcome.is_finished else None
        outcome, run = training
        trial = DiceTrial(rung=rung, settings=settings, seed=seed, outcome=outcome, run=run)
        self.trainings.append(trial)
        self._on_training(trial)
        return trial

    def _earlier(self, out: Path, task: Mapping[str, Any]) -> tuple[TrialOutcome, RunFacts | None] | None:
        """The same training of an earlier call; None without one whose run is there and whose memory is allowed."""
        try:
            kept = json.loads(_next_to(out, ".outcome.json").read_bytes())
            if _without_free_memory(kept["task"]) != _without_free_memory(json.loads(json.dumps(task))):
                return None
            outcome = TrialOutcome.from_plain(kept["outcome"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if outcome.kind == "out_of_memory" or not self._limits.hold(outcome):
            return None
        if not outcome.is_finished:
            return outcome, None
        try:
            run = read_run(out)
            if run.status == "finished":
                return outcome, run
            why = "its events do not reach its end"
        except InputError as error:
            why = str(error)
        warnings.warn(f"tune: the training in {out} is made again, because {why}", UserWarning, stacklevel=2)
        return None

    def _run(self, out: Path, task: Mapping[str, Any], length: Length) -> TrialOutcome:
        # A training does not begin in what is left of another one.
        shutil.rmtree(out, ignore_errors=True)
        file, answer = _next_to(out, ".task.json"), _next_to(out, ".json")
        file.write_text(json.dumps(task))
        seconds = _TIMES_LENGTH * length.seconds + _START_UP_S if length.seconds else self._limits.seconds
        outcome = run_trial(
            [sys.executable, "-m", "voxelocity.tuning.measure_training", str(file), str(answer)],
            answer=answer,
            log=_next_to(out, ".log"),
            limits=replace(self._limits, seconds=seconds),
        )
        _next_to(out, ".outcome.json").write_text(json.dumps({"task": task, "outcome": outcome.to_plain()}))
        return outcome


def _without_free_memory(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task without limits in bytes, which follow the memory that is free at the moment and change no result."""
    keys = {key: value for key, value in task["keys"].items() if not key.endswith("_bytes")}
    return {**{name: value for name, value in task.items() if not name.endswith("_bytes")}, "keys": keys}


def _next_to(folder: Path, ending: str) -> Path:
    """Not `with_suffix`: names have numbers with a point in them."""
    return folder.with_name(folder.name + ending)
