"""`train`: starts a run in an empty folder, goes on with an unfinished one, refuses to touch a finished one."""

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
from voxelocity.observe.sample_events import SampleEvents
from voxelocity.observe.sampling import Sampler
from voxelocity.observe.sinks import Outlets, RunStart, Sink
from voxelocity.planning import DeviceChoice, Planned, make_plan
from voxelocity.report import plan_table, read_run
from voxelocity.training.begun import (
    Begun,
    begun_record,
    differing_keys,
    in_short,
    other_data,
    other_options,
    other_path,
)
from voxelocity.training.caching import SKIPPED
from voxelocity.training.run import Run, RunResult
from voxelocity.training.run_folder import RunFolder, refuse_finished
from voxelocity.training.stop import StopRequest

# 1 ms of CPU each, and a line of about 1 KB.
_SAMPLE_PERIOD_S = 10.0
# Of a rotating cache, which cases an epoch learns from.
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

    An unfinished run in `out` goes on from its last checkpoint if its data set and its plan are the ones asked for;
    with `resume` it goes on with the plan it was begun with.

    Args:
        cases: what `voxelocity.open` returned.
        out: the run's folder.
        fold: which cases to hold out, or "all"; "auto" holds out fold 0, or with `resume` what the run held out.
        time_budget_s: seconds for the whole run; 0 trains for the planned number of steps. "auto" is 0, or with
            `resume` what the run has.
        seed: of the run; "auto" is 0, or with `resume` what the run has.
        device: where to train. It is no part of the plan: a run may go on on another one, and says so.
        overrides: keys of the plan to fix, nested or dotted.
        resume: go on with the run in `out`, with its own plan; fold, budget, seed and overrides that are given must
            be its own.
        overwrite: replace whatever run `out` holds.
        full_validation: never make the final validation cheaper for a time budget; with `resume` a finished run is
            validated again, in full.
        skip_broken: leave cases out that cannot be used, and say which; a resumed run leaves them out too.
        console: where progress is shown; the terminal if not given.
        clock: tells seconds.
        spent_s: seconds the program ran before this call; they count towards the time budget.
        stop: asked between two steps; Ctrl-C and SIGTERM if not given.
        sinks: are told every event of the run as well: `voxelocity.observe.sinks` has those for TensorBoard, W&B,
            MLflow and Prometheus. One that fails is told of once and left out. A resumed run goes on in their records.

    Raises:
        InputError: the data, the configuration or the folder cannot be used.
        InterruptedRunError: it was asked to stop; the state is saved.
        NonFiniteLossError: the loss became NaN or infinite.
    """
    console = console or PlainConsole()
    folder = RunFolder(Path(out))
    begin_s = clock() - spent_s
    folder.check_length()
    begun = _run_to_go_on_with(folder, resume=resume, overwrite=overwrite, may_be_finished=full_validation)
    is_finished = begun is not None and folder.state() == "finished"
    folder.check()
    earlier = read_events(folder.events) if begun is not None and folder.events.exists() else []
    skipped = frozenset(str(event.get("case_id")) for event in earlier if event["event"] == SKIPPED)
    plan_begin_s = clock()
    if begun is not None:
        cases = _same_data(folder, begun, cases)
    if begun is not None and resume:
        lines = other_options(begun, fold=fold, time_budget_s=time_budget_s, seed=seed, overrides=overrides or {})
        if lines:
            raise _refuse_options(folder, lines)
        fold, time_budget_s, seed, overrides = begun.fold, AUTO, AUTO, begun.plan.to_plain()
    planned = make_plan(
        cases,
        fold=0 if fold == AUTO else fold,
        time_budget_s=time_budget_s,
        seed=seed,
        device=device,
        overrides=overrides,
        begun=None if begun is None else begun.plan,
        skip_broken=skip_broken or bool(skipped),
    )
    plan_s = clock() - plan_begin_s
    if begun is not None:
        _check_same_plan(folder, begun, planned)
    folder.open()
    # Not `stop or ...`: a request that nobody has made yet is false.
    stop = StopRequest() if stop is None else stop
    with folder.locked() as notice:
        if overwrite:
            # Only now, so that a mistake in the new command costs nobody the old run.
            folder.clear()
        if begun is not None:
            doing = "validating the finished run" if is_finished else "resuming the unfinished run"
            console.print(f"{doing} in {folder.path}", highlight=False)
        else:
            console.print(plan_table(planned.choices))
            command = shlex.join(without_credentials(sys.argv))
            folder.write_record({"command": command, **begun_record(planned)})
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
                if begun is not None and begun.device not in ("", planned.machine.device):
                    run.warn(
                        f"train: the run was started on {begun.device} and continues on {planned.machine.device} with "
                        "the same plan; its weights are not bit for bit those of a run on one device"
                    )
                return run.validate_again() if is_finished else run.execute()


def _outlets(
    run: Run, sinks: Sequence[Sink], machine: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
) -> Outlets:
    """What hands the events of the run on to its sinks."""
    start = RunStart(
        name=run.folder.path.resolve().name,
        folder=run.folder.tracking,
        config=run.plan.to_plain(),
        environment=machine,
    )
    return Outlets(sinks, start, earlier=earlier, warn=run.warn)


def _samples(log: EventLog) -> Sampler:
    """What tells the sinks of the machine; nothing else reads it, so without sinks nothing is asked."""
    return Sampler(os.getpid(), period_s=_SAMPLE_PERIOD_S, on_sample=SampleEvents(log))


def _tell_of_phases(timings: Mapping[str, float], *, ago_s: float) -> None:
    """Puts what came before the run onto a monitor's time line: the first began so many seconds ago."""
    start_s = system_clock() - ago_s
    for name, seconds in timings.items():
        ended_span("start-up" if name == "start" else name, start_s=start_s, seconds=seconds, color="silver")
        start_s += seconds


def _run_to_go_on_with(folder: RunFolder, *, resume: bool, overwrite: bool, may_be_finished: bool) -> Begun | None:
    """The run in the folder, whose files were found whole; None where the command starts one."""
    if resume and overwrite:
        raise InputError(f"train: --resume keeps the run in {folder.path}, --overwrite replaces it; give one of them")
    if resume and not folder.holds_run:
        raise InputError(f"train: {folder.path} holds no run to resume; leave --resume out to start one")
    if overwrite or not folder.holds_run:
        return None
    if folder.state() == "finished" and not (resume and may_be_finished):
        raise refuse_finished(folder)
    begun = folder.read_begun()
    # Pictures and report will read all of it: what is damaged must be found before hours of training.
    read_run(folder.path)
    return begun


def _same_data(folder: RunFolder, begun: Begun, cases: Cases) -> Cases:
    """The cases with their classes declared, once it is clear that they are those of the run."""
    lines = other_path(begun, cases)
    moved = f"; if the same data set was moved, correct dataset.path in {folder.record}" if lines else ""
    if not lines:
        cases = declare_labels(declare_channels(cases), num_threads=cpu_budget())
        lines = other_data(begun, cases)
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


def _check_same_plan(folder: RunFolder, begun: Begun, planned: Planned) -> None:
    before, now = begun.plan.to_plain(), planned.plan.to_plain()
    # Where cases are kept depends on the memory that happens to be free, and changes no result.
    before["data"]["cache"] = _with_same_draws(before["data"]["cache"], now["data"]["cache"])
    # How a plan is made, not what it says.
    before["planner"] = now["planner"]
    lines = differing_keys(before, now)
    if begun.fold != planned.fold:
        lines.append(f"fold: {begun.fold} -> {planned.fold}")
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run with another plan ({in_short(lines)}); "
            "continue with its own plan by --resume, or replace it with --overwrite"
        )


def _with_same_draws(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The new plan's cache, but with what decides which cases an epoch draws as the run has it."""
    keys = ["num_parts", *(_DRAWING_KEYS if "rotating" in (before["tier"], now["tier"]) else ())]
    return {**now, **{key: before[key] for key in keys}}
