"""`tune`: searches the settings of a run on this machine, and keeps what it found for the plan."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO, flatten
from voxelocity.core.requests.plan import plan_request
from voxelocity.core.requests.tune import LEARNING_RATE, TuneOptions, TuneRequest
from voxelocity.parallel import join_world
from voxelocity.planning import (
    Machine,
    Plan,
    Planned,
    plan_cases,
    read_overrides,
    tuned_key,
    without_places,
)
from voxelocity.report import RunFacts
from voxelocity.tuning.by_dice import DiceTuning, training_line, tune_by_dice
from voxelocity.tuning.by_range import RateResult, find_learning_rate
from voxelocity.tuning.costs import PeakMemory, RunTime, peak_bytes
from voxelocity.tuning.dice import Length, TrialTrainer
from voxelocity.tuning.job import TuneJob
from voxelocity.tuning.keeping import keep_settings
from voxelocity.tuning.knobs import run_knobs
from voxelocity.tuning.page import write_tuning_page
from voxelocity.tuning.result import TuneResult, changed_values, machine_text, trial_line
from voxelocity.tuning.space import Settings
from voxelocity.tuning.study import RUNS_FOLDER, Cost, Search, Study
from voxelocity.tuning.task import USUAL_SCALE, MeasureTask, TrialScale
from voxelocity.tuning.trial import TrialLimits
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.request import context_of, documents

Tuning = TuneResult | DiceTuning | RateResult
"""What a tuning came to, by its goal; all have a folder, the keys of the plan that change, and where these are kept."""

# A trial that has not ended after this long hangs.
_TRIAL_LIMIT_S = 900.0
# The other ranks wait for the one that tunes. In milliseconds, it is still an int32.
_LONGEST = timedelta(days=20)
# Settings that lower the memory may make a run longer by this share.
_MEMORY_MARGIN = 0.03
# What the page says of a plan.
_SMALLER = "plan a smaller run: --set data.batch_size=1, or a smaller data.patch.shape_voxel"
_NOTE = (
    "Batch size, learning rate and number format change results. They stay as planned; `--for time-to-dice` compares "
    "them by the Dice of trainings."
)


@dataclass(frozen=True, kw_only=True)
class TuneContext:
    """What a program hands to a tuning besides the user's request."""

    base: Plan | None = None
    """The plan of a run, to begin with it instead of a new one."""
    run: RunFacts | None = None
    """What is known of that run, whose curves the page then shows."""
    scale: TrialScale = USUAL_SCALE
    """How much a trial measures."""
    console: Console | None = None
    """Where progress is shown; the terminal if not given."""
    clock: Clock = system_clock
    """Returns seconds."""


class TuningOptions(TuneOptions, total=False):
    """The keywords of `tune`: the fields of `TuneRequest` and those of `TuneContext`."""

    base: Plan | None
    run: RunFacts | None
    scale: TrialScale
    console: Console | None
    clock: Clock


@documents(TuneRequest, TuneContext, leave_out=("out",))
def tune(cases: Cases, out: Path | str, **options: Unpack[TuningOptions]) -> Tuning:
    """Searches settings for a run on these cases, in trials of their own processes, and leaves a page in `out`.

    The plans made afterwards on this machine, for the same network, data shape and version of torch, take what was
    found. A tuning that was stopped continues with the same call. Of several ranks, the first one tunes.

    Args:
        cases: what `voxelocity.open` returned.
        out: the folder of the study and its page.
        options: the fields of `TuneRequest`, `time_budget` as a text such as "5m", and the fields of `TuneContext`.

    Raises:
        ConfigError: an argument or key is out of range, or the folder holds a study of something else.
        OutputError: the folder cannot be written, or another process is tuning there.
        InputError: Optuna is not installed, or the data cannot be used.
    """
    context, asked = context_of(TuneContext, options)
    request = TuneRequest.of_call(asked, out=out)
    with request.errors_as_written():
        return run_tuning(cases, request, context)


def run_tuning(cases: Cases, request: TuneRequest, context: TuneContext) -> Tuning:
    """What `tune` does, for a request."""
    folder = (request.cache_folder or default_cache_folder()).expanduser()
    request = replace(request, cache_folder=folder)
    with join_world(timeout=_LONGEST) as world, world.limit_waiting(math.inf):
        return world.run_on_leader(lambda: _tune_alone(cases, request, context, folder))


def _tune_alone(cases: Cases, request: TuneRequest, context: TuneContext, folder: Path) -> Tuning:
    """The tuning on the one rank that does it; later plans find in `folder` what it found."""
    planned = plan_to_tune(cases, request, base=context.base)
    limits = trial_limits(planned.machine, request.memory_limit_bytes)
    console = context.console or PlainConsole()
    job = TuneJob(
        planned=planned, request=request, limits=limits, cache=folder, run=context.run, scale=context.scale,
        console=console, clock=context.clock,
    )  # fmt: skip
    return _MODES[LEARNING_RATE if request.is_range_test else request.goal](job)


def trial_limits(machine: Machine, memory_limit_bytes: int) -> TrialLimits:
    """The user's limit or, without one, what is free: a trial must not push other programs out."""
    on_device = machine.device == "cuda"
    memory_limit_bytes = memory_limit_bytes or (machine.device_free_bytes if on_device else machine.memory_bytes)
    return TrialLimits(
        seconds=_TRIAL_LIMIT_S,
        host_bytes=0 if on_device else memory_limit_bytes,
        device_bytes=memory_limit_bytes if on_device else 0,
    )


def plan_to_tune(cases: Cases, request: TuneRequest, *, base: Plan | None) -> Planned:
    """The plan that a tuning begins with: the rules', or that of a run, with the user's keys.

    Raises:
        ConfigError: the request contradicts itself, or the run.
    """
    if base is not None and request.plans is not None:
        raise request.refusal("the run that is tuned has a plan; leave it out, or name the data set instead", "plans")
    keys = {} if base is None else without_places(flatten(Plan, base.to_plain()), request.overrides, where="the run")
    if request.seed != AUTO:
        keys.pop("seed", None)
    keys |= read_overrides(request.overrides)
    # A rate is kept next to what was tuned before, such as another batch size.
    if not request.is_range_test:
        keys["planner.use_tuned"] = False
    wanted = replace(plan_request(request), time_budget_s=AUTO, overrides=keys)
    return plan_cases(cases, replace(wanted, cache_folder=request.cache_folder))


def _search(job: TuneJob) -> TuneResult:
    """Settings that change no results, by trials of a few seconds."""
    planned, request = job.planned, job.request
    knobs = run_knobs(planned, fixed=read_overrides(request.overrides), names=request.only)
    if not knobs:
        raise ConfigError("tune: your configuration fixes everything that could be searched; leave some keys out")
    on_device = planned.machine.device == "cuda"
    time_of_run = RunTime.of(planned)
    cost: Cost = (
        time_of_run
        if request.goal == "throughput"
        else PeakMemory(time=time_of_run, margin=_MEMORY_MARGIN, on_device=on_device)
    )
    search = Search(
        knobs=knobs,
        limits=job.limits,
        num_trials=request.trials,
        time_budget_s=request.limit_s,
        seed=request.seed_or_0,
        about=_about(job),
    )
    with tempfile.TemporaryDirectory(prefix="voxelocity-tune-") as private:
        study = Study(
            request.out,
            search,
            command=_command(job.measure_task(), Path(private)),
            cost=cost,
            overwrite=request.overwrite,
            on_trial=lambda record: job.say(trial_line(record, knobs, on_device=on_device)),
            clock=job.clock,
        )
        found = study.run()
    changed = {} if found.winner is None else changed_values(found.winner, knobs)
    result = TuneResult(
        folder=request.out, goal=request.goal, planned=planned, subject=planned.cases.name,
        where=machine_text(planned.machine), owner="the plan", smaller=_SMALLER, note=_NOTE, knobs=knobs, study=found,
        time=time_of_run, memory_limit_bytes=request.memory_limit_bytes, on_device=on_device, values=changed, kept=None,
    )  # fmt: skip
    if job.keeps and found.winner is not None:
        peaks = [peak_bytes(trial.outcome, on_device=on_device) for trial in found.winner_trials]
        kept = keep_settings(
            planned, changed, searched=[knob.name for knob in knobs], goal=request.goal, ratios=result.time_ratios,
            peak_bytes=max(peaks), cache=job.cache,
        )  # fmt: skip
        result = replace(result, kept=kept)
    runs = _train_both(job, changed) if request.train_s and changed else () if job.run is None else (job.run,)
    result = replace(result, runs=runs)
    write_tuning_page(result)
    return result


def _train_both(job: TuneJob, changed: Settings) -> tuple[RunFacts, ...]:
    """A training with the plan's own settings and one with the tuned ones; the first alone, or none, if one failed."""
    if job.request.overwrite:
        shutil.rmtree(job.request.out / RUNS_FOLDER, ignore_errors=True)
    trainer = TrialTrainer(
        job.planned, job.request.out, job.limits, on_training=lambda training: job.say(training_line(training))
    )
    seed, length = job.planned.plan.seed, Length(seconds=job.request.train_s)
    runs: list[RunFacts] = []
    # The page shows the first as before and the second as after.
    for settings in ({}, changed):
        if (run := trainer.train(0, settings, seed, length, is_pair=True).run) is None:
            break
        runs.append(run)
    return tuple(runs)


def _about(job: TuneJob) -> dict[str, Any]:
    """What must be the same for a study to continue. Not the whole plan: parts of it follow the memory that is free."""
    planned, plan = job.planned, job.planned.plan
    return {
        "goal": job.request.goal,
        "tuned for": tuned_key(plan.to_plain(), planned.fingerprint, planned.machine),
        "batch size": plan.data.batch_size,
        "number format": plan.precision.compute,
        "memory limit": job.request.memory_limit_bytes,
        "scale": vars(job.scale),
    }


def _command(task: MeasureTask, private: Path) -> Callable[..., Sequence[str]]:
    """How a trial is run: with a task in a folder that only this user can read."""

    def command(settings: Settings, *, answer: Path, limits: TrialLimits) -> Sequence[str]:
        file = private / f"{answer.stem}.task"
        task.with_keys(settings, device_limit_bytes=limits.device_bytes).write(file)
        return [sys.executable, "-m", "voxelocity.tuning.measure_run", str(file), str(answer)]

    return command


_MODES: Mapping[str, Callable[[TuneJob], Tuning]] = {
    "throughput": _search,
    "memory": _search,
    "time-to-dice": tune_by_dice,
    LEARNING_RATE: find_learning_rate,
}
