"""`train`: starts a run in an empty folder, continues an unfinished one, refuses to touch a finished one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import AUTO, Auto
from voxelocity.core.console import PlainConsole
from voxelocity.core.credentials import without_credentials
from voxelocity.core.errors import InputError
from voxelocity.data.pipeline import declare_channels, declare_labels
from voxelocity.observe import Clock, EventLog, cpu_budget, ended_span, environment, read_events, system_clock
from voxelocity.observe.samples import SampleEvents
from voxelocity.observe.sampling import Sampler
from voxelocity.observe.sinks import Outlets, RunStart, Sink
from voxelocity.planning import DeviceChoice, Planned, make_plan
from voxelocity.report import plan_table, read_run
from voxelocity.training.caching import SKIPPED
from voxelocity.training.run import Run, RunResult
from voxelocity.training.run_folder import RunFolder, refuse_finished
from voxelocity.training.saved_run import (
    SavedRun,
    conflicting_options,
    differing_keys,
    in_short,
    other_data,
    other_path,
    saved_run_record,
)
from voxelocity.training.stop import StopRequest

# 1 ms of CPU each, and a line of about 1 KB.
_SAMPLE_PERIOD_S = 10.0
# Keys of a rotating cache that decide which cases an epoch trains on.
_DRAWING_KEYS = ("tier", "num_cases", "replace_rate")


def train(
    cases: Cases,
    out: Path | str,
    *,
    fold: Fold | Auto = AUTO,
    time_budget_s: float | Auto = AUTO,
    seed: int | Auto = AUTO,
    device: DeviceChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    full_validation: bool = False,
    skip_broken: bool = False,
    console: Console | None = None,
    clock: Clock = system_clock,
    spent_s: float = 0.0,
    stop: StopRequest | None = None,
    sinks: Sequence[Sink] = (),
) -> RunResult:
    """Trains a network on the cases and leaves model, scores and report in `out`.

    An unfinished run in `out` continues from its last checkpoint if its data set and its plan are the requested ones;
    with `resume` it continues with the plan it was started with.

    Args:
        cases: what `voxelocity.open` returned.
        out: the run's folder.
        fold: which cases to hold out, or "all"; "auto" holds out fold 0, or with `resume` what the run held out.
        time_budget_s: seconds for the whole run; 0 trains for the planned number of steps. "auto" is 0, or with
            `resume` what the run has.
        seed: of the run; "auto" is 0, or with `resume` what the run has.
        device: where to train. It is not part of the plan: a run may continue on another one, and says so.
        overrides: keys of the plan to fix, nested or dotted.
        resume: continue the run in `out` with its own plan; if you give fold, budget, seed or overrides, they must
            match the run's.
        overwrite: replace any run that `out` holds.
        full_validation: never shorten the final validation to meet a time budget; with `resume` a finished run is
            validated again, in full.
        skip_broken: leave out cases that cannot be used, and report which; a resumed run leaves them out too.
        console: where progress is shown; the terminal if not given.
        clock: returns seconds.
        spent_s: seconds the program ran before this call; they count toward the time budget.
        stop: checked between two steps; Ctrl-C and SIGTERM if not given.
        sinks: also receive every event of the run: `voxelocity.observe.sinks` has those for TensorBoard, W&B, MLflow
            and Prometheus. One that fails is reported once and left out. A resumed run continues their records.

    Raises:
        InputError: the data, the configuration or the folder cannot be used.
        InterruptedRunError: it was asked to stop; the state is saved.
        NonFiniteLossError: the loss became NaN or infinite.
    """
    console = console or PlainConsole()
    folder = RunFolder(Path(out))
    begin_s = clock() - spent_s
    folder.check_length()
    saved = _run_to_go_on_with(folder, resume=resume, overwrite=overwrite, may_be_finished=full_validation)
    is_finished = saved is not None and folder.state() == "finished"
    folder.check()
    earlier = read_events(folder.events) if saved is not None and folder.events.exists() else []
    skipped = frozenset(str(event.get("case_id")) for event in earlier if event["event"] == SKIPPED)
    plan_begin_s = clock()
    if saved is not None:
        cases = _same_data(folder, saved, cases)
    if saved is not None and resume:
        lines = conflicting_options(saved, fold=fold, time_budget_s=time_budget_s, seed=seed, overrides=overrides or {})
        if lines:
            raise _refuse_options(folder, lines)
        fold, time_budget_s, seed, overrides = saved.fold, AUTO, AUTO, saved.plan.to_plain()
    planned = make_plan(
        cases,
        fold=0 if fold == AUTO else fold,
        time_budget_s=time_budget_s,
        seed=seed,
        device=device,
        overrides=overrides,
        saved_plan=None if saved is None else saved.plan,
        skip_broken=skip_broken or bool(skipped),
    )
    plan_s = clock() - plan_begin_s
    if saved is not None:
        _check_same_plan(folder, saved, planned)
    folder.open()
    # Not `stop or ...`: a request is false until a stop is asked for.
    stop = StopRequest() if stop is None else stop
    with folder.locked() as notice:
        if overwrite:
            # Only now, so that a mistake in the new command does not lose the old run.
            folder.clear()
        if saved is not None:
            doing = "validating the finished run" if is_finished else "resuming the unfinished run"
            console.print(f"{doing} in {folder.path}", highlight=False)
        else:
            console.print(plan_table(planned.choices))
            command = shlex.join(without_credentials(sys.argv))
            folder.write_record({"command": command, **saved_run_record(planned)})
        timings = {"start": plan_begin_s - begin_s, "plan": plan_s}
        with EventLog.resume(folder.events, begin_s=begin_s, clock=clock) as log, stop:
            run = Run(
                planned=planned,
                folder=folder,
                log=log,
                console=console,
                clock=clock,
                stop=stop,
                is_full_validation=full_validation,
                skip_broken=skip_broken,
                skipped=skipped,
            )
            machine = environment()
            with _outlets(run, sinks, machine, earlier) as outlets, _samples(log) if sinks else nullcontext():
                log.listen(outlets.write)
                log.write("run_started", environment=machine)
                for name, seconds in timings.items():
                    log.write("stage", name=name, seconds=seconds)
                _tell_of_phases(timings, ago_s=clock() - begin_s)
                if notice:
                    run.warn(notice)
                if saved is not None and saved.device not in ("", planned.machine.device):
                    run.warn(
                        f"train: the run was started on {saved.device} and continues on {planned.machine.device} with "
                        "the same plan; its weights are not bit-for-bit those of a run on one device"
                    )
                return run.validate_again() if is_finished else run.execute()


def _outlets(
    run: Run, sinks: Sequence[Sink], machine: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
) -> Outlets:
    """Passes the events of the run on to its sinks."""
    start = RunStart(
        name=run.folder.path.resolve().name,
        folder=run.folder.tracking,
        config=run.plan.to_plain(),
        environment=machine,
    )
    return Outlets(sinks, start, earlier=earlier, warn=run.warn)


def _samples(log: EventLog) -> Sampler:
    """Samples the machine for the sinks; nothing else reads the samples, so without sinks none are taken."""
    return Sampler(os.getpid(), period_s=_SAMPLE_PERIOD_S, on_sample=SampleEvents(log))


def _tell_of_phases(timings: Mapping[str, float], *, ago_s: float) -> None:
    """Puts what came before the run onto a monitor's timeline: the first phase began `ago_s` seconds ago."""
    start_s = system_clock() - ago_s
    for name, seconds in timings.items():
        ended_span("start-up" if name == "start" else name, start_s=start_s, seconds=seconds, color="silver")
        start_s += seconds


def _run_to_go_on_with(folder: RunFolder, *, resume: bool, overwrite: bool, may_be_finished: bool) -> SavedRun | None:
    """The run in the folder, whose files were checked; None if the command starts a new run."""
    if resume and overwrite:
        raise InputError(f"train: --resume keeps the run in {folder.path}, --overwrite replaces it; give one of them")
    if resume and not folder.holds_run:
        raise InputError(f"train: {folder.path} holds no run to resume; leave --resume out to start one")
    if overwrite or not folder.holds_run:
        return None
    if folder.state() == "finished" and not (resume and may_be_finished):
        raise refuse_finished(folder)
    saved = folder.read_saved_run()
    # Pictures and report will read all of it, so damage must be found before hours of training.
    read_run(folder.path)
    return saved


def _same_data(folder: RunFolder, saved: SavedRun, cases: Cases) -> Cases:
    """The cases with their classes declared, after checking that they are the run's."""
    lines = other_path(saved, cases)
    moved = f"; if the same data set was moved, correct dataset.path in {folder.record}" if lines else ""
    if not lines:
        cases = declare_labels(declare_channels(cases), num_threads=cpu_budget())
        lines = other_data(saved, cases)
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run on another data set ({in_short(lines)}); choose another "
            f"folder with -o, or replace the run with --overwrite{moved}"
        )
    return cases


def _refuse_options(folder: RunFolder, lines: Sequence[str]) -> InputError:
    return InputError(
        f"train: --resume continues the run in {folder.path} as it was started, but was given {in_short(lines)}; "
        "leave out what differs, choose another folder with -o, or replace the run with --overwrite"
    )


def _check_same_plan(folder: RunFolder, saved: SavedRun, planned: Planned) -> None:
    before, now = saved.plan.to_plain(), planned.plan.to_plain()
    # Where cases are kept depends on the memory that is free at the moment, and does not change results.
    before["data"]["cache"] = _with_same_draws(before["data"]["cache"], now["data"]["cache"])
    # How a plan is made, not what it says.
    before["planner"] = now["planner"]
    lines = differing_keys(before, now)
    if saved.fold != planned.fold:
        lines.append(f"fold: {saved.fold} -> {planned.fold}")
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run with another plan ({in_short(lines)}); "
            "continue it with its own plan with --resume, or replace it with --overwrite"
        )


def _with_same_draws(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The new plan's cache, but with the run's own keys that decide which cases an epoch draws."""
    keys = ["num_parts", *(_DRAWING_KEYS if "rotating" in (before["tier"], now["tier"]) else ())]
    return {**now, **{key: before[key] for key in keys}}
