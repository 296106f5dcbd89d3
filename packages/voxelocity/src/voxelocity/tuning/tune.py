"""`tune`: searches the settings of a run on this machine, and keeps what it found for the plan."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import flatten
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import CacheConfig
from voxelocity.data.pipeline import PreparedCases
from voxelocity.parallel import joined, read_place
from voxelocity.planning import (
    DeviceChoice,
    Machine,
    Plan,
    Planned,
    make_plan,
    read_overrides,
    tuned_key,
    without_places,
)
from voxelocity.report import RunFacts
from voxelocity.tuning.by_dice import DiceTuning, tune_by_dice
from voxelocity.tuning.by_range import RateResult, find_learning_rate
from voxelocity.tuning.costs import PeakMemory, RunTime, peak_bytes
from voxelocity.tuning.dice import Length, TrialTrainer
from voxelocity.tuning.keeping import keep_settings
from voxelocity.tuning.knobs import GOALS, Goal, run_knobs
from voxelocity.tuning.page import write_tuning_page
from voxelocity.tuning.result import TuneResult, changed_values, machine_text, trial_line
from voxelocity.tuning.space import Knob, Settings
from voxelocity.tuning.study import RUNS_FOLDER, Cost, Search, Study
from voxelocity.tuning.task import MeasureTask
from voxelocity.tuning.trial import TrialLimits
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import cpu_budget, default_cache_folder

Tuning = TuneResult | DiceTuning | RateResult
"""What a tuning came to, by its goal; all have a folder, the keys of the plan that change, and where these are kept."""

LEARNING_RATE = "learning-rate"
_DICE_BUDGET_S = 600.0
# A trial that has not ended after this long hangs.
_TRIAL_LIMIT_S = 900.0
# The other ranks wait for the one that tunes. In milliseconds, it is still an int32.
_LONGEST = timedelta(days=20)
# Settings that lower the memory may make a run longer by this share.
_MEMORY_MARGIN = 0.03
# What the page says of a plan.
_SMALLER = "plan a smaller run: --set data.batch_size=1, or a smaller data.patch.shape_voxel"
_NOTE = (
    "Batch size, learning rate and number format change what is learned. They stay as planned, and are compared by the "
    "Dice of trainings with `--for time-to-dice`."
)


@dataclass(frozen=True, kw_only=True)
class TrialScale:
    """How much a trial measures.

    Attributes:
        window_s: of each window of training steps. `num_windows` are measured.
        num_cases: that a trial prepares and trains on.
        validation_s: after which a validation is cut off and its time estimated.
    """

    window_s: float = 2.0
    num_windows: int = 4
    num_cases: int = 8
    validation_s: float = 20.0


def tune(
    cases: Cases,
    out: Path | str,
    *,
    goal: Goal = "throughput",
    trials: int = 20,
    time_budget_s: float = 0.0,
    memory_limit_bytes: int = 0,
    only: Sequence[str] = (),
    num_pairs: int = 3,
    train_s: float = 0.0,
    fold: Fold = 0,
    seed: int = 0,
    device: DeviceChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    base: Plan | None = None,
    run: RunFacts | None = None,
    keep: bool | None = None,
    overwrite: bool = False,
    scale: TrialScale = TrialScale(),
    cache_folder: Path | None = None,
    console: Console | None = None,
    clock: Clock = system_clock,
) -> Tuning:
    """Searches settings for a run on these cases, in trials of their own processes, and leaves a page in `out`.

    The plans made afterwards on this machine, for the same network, data shape and version of torch, take what was
    found. A tuning that was stopped continues with the same call. Of several ranks, the first one tunes.

    Args:
        cases: what `voxelocity.open` returned.
        out: the folder of the study and its page.
        goal: "throughput": the shortest run, among settings that do not change what is learned. "memory": the least
            memory among those that make a run at most 3 % longer. "time-to-dice": batch size with its learning rate,
            number format and patches a case, by the Dice of short trainings.
        trials: of the search; three confirmations of the winner and of the plan's own settings come on top.
        time_budget_s: seconds for everything; 0 sets no limit, and ten minutes for "time-to-dice".
        memory_limit_bytes: of the device or, on a CPU, of the host: a trial that takes more counts as out of memory.
        only: keys to search; all that are usually worth it if empty. "learning-rate" makes a range test instead.
        num_pairs: of trainings that judge the candidate for "time-to-dice", each with a seed of its own.
        train_s: seconds of a training with the plan's own settings and of one with what was found, for the curves on
            the page; 0 makes none.
        fold: which cases to hold out, or "all".
        seed: of the search and of the run.
        device: where to train.
        overrides: nested or dotted keys of the plan to fix; they are not searched.
        base: the plan of a run, to begin with it instead of a new one.
        run: what is known of that run, whose curves the page then shows.
        keep: whether later plans take what was found; by default all but a learning rate from a range test.
        overwrite: begin again, even if the folder holds a study.
        scale: how much a trial measures.
        cache_folder: where the plan finds what was tuned; `default_cache_folder()` if not given.
        console: where progress is shown; the terminal if not given.
        clock: returns seconds.

    Raises:
        ConfigError: an argument or key is out of range, or the folder holds a study of something else.
        OutputError: the folder cannot be written, or another process is tuning there.
        InputError: Optuna is not installed, or the data cannot be used.
    """
    _check(goal, memory_limit_bytes, only, train_s)
    folder = (cache_folder or default_cache_folder()).expanduser()
    with joined(timeout=_LONGEST) as world, world.limited(math.inf):

        def led() -> Tuning:
            shown = console or PlainConsole()
            planned = plan_to_tune(
                cases, fold=fold, seed=seed, device=device, overrides=overrides or {}, base=base, cache_folder=folder,
                # Its rate is kept next to what was tuned before, such as another batch size.
                use_tuned=LEARNING_RATE in only,
            )  # fmt: skip
            limits = trial_limits(planned.machine, memory_limit_bytes, time_budget_s)
            if LEARNING_RATE in only:
                return find_learning_rate(
                    measure_task(planned, scale), Path(out), limits=limits, environ=trial_environ(),
                    keep_in=folder if keep else None,
                )  # fmt: skip
            keep_in = None if keep is False else folder
            if goal == "time-to-dice":
                return tune_by_dice(
                    planned, Path(out), budget=Length(seconds=time_budget_s or _DICE_BUDGET_S), num_pairs=num_pairs,
                    limits=limits, environ=trial_environ(), keep_in=keep_in, overwrite=overwrite,
                    say=lambda text: shown.print(text, highlight=False),
                )  # fmt: skip
            knobs = run_knobs(planned, fixed=read_overrides(overrides or {}), names=only)
            result = _search(
                planned, Path(out), knobs, goal=goal, trials=trials, time_budget_s=time_budget_s, limits=limits,
                memory_limit_bytes=memory_limit_bytes, seed=seed, overwrite=overwrite, scale=scale, console=shown,
                clock=clock, keep_in=keep_in,
            )  # fmt: skip
            if train_s and result.values:
                if overwrite:
                    shutil.rmtree(result.folder / RUNS_FOLDER, ignore_errors=True)
                result = replace(result, runs=_both_trained(result, limits, train_s))
            elif run is not None:
                result = replace(result, runs=(run,))
            write_tuning_page(result)
            return result

        return world.led(led)


def _check(goal: str, memory_limit_bytes: int, only: Sequence[str], train_s: float) -> None:
    if goal not in GOALS:
        raise ConfigError(f"tune: the goal {goal!r} is not known; choose {', '.join(GOALS)}")
    if memory_limit_bytes < 0:
        raise ConfigError(f"tune: a memory limit of {memory_limit_bytes} bytes leaves nothing; give 8GB, or 0 for none")
    if LEARNING_RATE in only and len(only) > 1:
        raise ConfigError(f"tune: {LEARNING_RATE} is a test of its own; search {', '.join(only[1:])} in another call")
    if train_s and (goal == "time-to-dice" or LEARNING_RATE in only):
        raise ConfigError(
            f"tune: --train shows curves of what throughput or memory finds, not of "
            f"{LEARNING_RATE if LEARNING_RATE in only else goal}; leave it out"
        )
    if goal == "time-to-dice" and only:
        raise ConfigError("tune: only searches settings by speed or memory; leave it out for time-to-dice")


def trial_limits(machine: Machine, memory_limit_bytes: int, time_budget_s: float) -> TrialLimits:
    """The user's limit or, without one, what is free: a trial must not push other programs out."""
    on_device = machine.device == "cuda"
    memory_limit_bytes = memory_limit_bytes or (machine.device_free_bytes if on_device else machine.memory_bytes)
    return TrialLimits(
        seconds=min(_TRIAL_LIMIT_S, time_budget_s or math.inf),
        host_bytes=0 if on_device else memory_limit_bytes,
        device_bytes=memory_limit_bytes if on_device else 0,
    )


def plan_to_tune(
    cases: Cases,
    *,
    fold: Fold,
    seed: int,
    device: DeviceChoice,
    overrides: Mapping[str, Any],
    base: Plan | None,
    cache_folder: Path,
    use_tuned: bool = False,
) -> Planned:
    """The plan that a tuning begins with: the rules', or that of a run, with the user's keys."""
    keys = {} if base is None else without_places(flatten(Plan, base.to_plain()), overrides, where="the run")
    keys |= read_overrides(overrides)
    if not use_tuned:
        keys["planner.use_tuned"] = False
    keys.setdefault("seed", seed)
    return make_plan(cases, fold=fold, device=device, overrides=keys, cache_folder=cache_folder)


def _search(
    planned: Planned,
    out: Path,
    knobs: tuple[Knob, ...],
    *,
    goal: Goal,
    trials: int,
    time_budget_s: float,
    limits: TrialLimits,
    memory_limit_bytes: int,
    seed: int,
    overwrite: bool,
    scale: TrialScale,
    console: Console,
    clock: Clock,
    keep_in: Path | None,
) -> TuneResult:
    if not knobs:
        raise ConfigError("tune: your configuration fixes everything that could be searched; leave some keys out")
    on_device = planned.machine.device == "cuda"
    time_of_run = RunTime.of(planned)
    cost: Cost = (
        time_of_run
        if goal == "throughput"
        else PeakMemory(time=time_of_run, margin=_MEMORY_MARGIN, on_device=on_device)
    )
    task = measure_task(planned, scale)
    search = Search(
        knobs=knobs,
        limits=limits,
        num_trials=trials,
        time_budget_s=time_budget_s,
        seed=seed,
        about=_about(planned, goal, memory_limit_bytes, scale),
    )
    with tempfile.TemporaryDirectory(prefix="voxelocity-tune-") as private:
        study = Study(
            out,
            search,
            command=_command(task, Path(private)),
            cost=cost,
            environ=trial_environ(),
            overwrite=overwrite,
            on_trial=lambda record: console.print(trial_line(record, knobs, on_device=on_device), highlight=False),
            clock=clock,
        )
        found = study.run()
    changed = {} if found.winner is None else changed_values(found.winner, knobs)
    result = TuneResult(
        folder=out, goal=goal, planned=planned, subject=planned.cases.name, where=machine_text(planned.machine),
        owner="the plan", smaller=_SMALLER, note=_NOTE, knobs=knobs, study=found, time=time_of_run,
        memory_limit_bytes=memory_limit_bytes, on_device=on_device, values=changed, kept=None,
    )  # fmt: skip
    return result if keep_in is None or found.winner is None else _kept(result, keep_in)


def _kept(result: TuneResult, cache: Path) -> TuneResult:
    """The result, after later plans were made to take it."""
    peaks = [peak_bytes(trial.outcome, on_device=result.on_device) for trial in result.study.winner_trials]
    kept = keep_settings(
        result.planned, result.values, searched=[knob.name for knob in result.knobs], goal=result.goal,
        ratios=result.time_ratios, peak_bytes=max(peaks), cache=cache,
    )  # fmt: skip
    return replace(result, kept=kept)


def _both_trained(result: TuneResult, limits: TrialLimits, seconds: float) -> tuple[RunFacts, ...]:
    """A training with the plan's own settings and one with the tuned ones; fewer if one failed."""
    trainer = TrialTrainer(result.planned, result.folder, limits, trial_environ(), lambda training: None)
    seed, length = result.planned.plan.seed, Length(seconds=seconds)
    made = [trainer.train(0, settings, seed, length, is_pair=True) for settings in ({}, result.values)]
    return tuple(training.run for training in made if training.run is not None)


def _about(planned: Planned, goal: Goal, memory_limit_bytes: int, scale: TrialScale) -> dict[str, Any]:
    """What must be the same for a study to continue. Not the whole plan: parts of it follow the memory that is free."""
    plan = planned.plan
    return {
        "goal": goal,
        "tuned for": tuned_key(plan.to_plain(), planned.fingerprint, planned.machine),
        "batch size": plan.data.batch_size,
        "number format": plan.precision.compute,
        "memory limit": memory_limit_bytes,
        "scale": vars(scale),
    }


def measure_task(planned: Planned, scale: TrialScale) -> MeasureTask:
    """What every trial measures: some training cases, evenly chosen, and the largest case of the validation."""
    split = planned.cases.split(planned.fold)
    training, held = list(split.training), list(split.validation)
    both = [*training, *(held if split.held_out else ())]
    # Nothing is prepared here: only headers are read.
    sized = PreparedCases(
        both,
        label_values=planned.cases.stored_values,
        prepare=planned.plan.data.prepare,
        cache=CacheConfig(tier="none"),
        warn=lambda text: None,
    )
    num_bytes = {ref.case_id: sized.most_bytes(index) for index, ref in enumerate(both)}

    def size(ref: VolumeRef) -> int:
        return num_bytes[ref.case_id]

    count = min(scale.num_cases, len(training))
    chosen = [training[number * len(training) // count] for number in range(count)]
    validated = max(held or training, key=size)
    used = {ref.case_id for ref in (*chosen, validated)}
    return MeasureTask(
        planned=planned,
        training=tuple(chosen),
        validated=validated,
        window_s=scale.window_s,
        num_windows=scale.num_windows,
        validation_s=scale.validation_s,
        rest_bytes=sum(size for case_id, size in num_bytes.items() if case_id not in used),
    )


def _command(task: MeasureTask, private: Path) -> Callable[..., Sequence[str]]:
    """How a trial is run: with a task in a folder that only this user can read."""

    def command(settings: Settings, *, answer: Path, limits: TrialLimits) -> Sequence[str]:
        file = private / f"{answer.stem}.task"
        task.with_keys(settings, device_limit_bytes=limits.device_bytes).write(file)
        return [sys.executable, "-m", "voxelocity.tuning.measure_run", str(file), str(answer)]

    return command


def trial_environ() -> dict[str, str]:
    """Variables of a trial: it finds this package, and its threads wait as those of the command line do."""
    # As many as a rank has, to which torchrun gives one.
    threads = {} if read_place().is_alone else {"OMP_NUM_THREADS": str(cpu_budget())}
    return {
        **threads,
        "PYTHONPATH": python_path(),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
