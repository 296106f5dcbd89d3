"""`train`: starts a run in an empty folder, goes on with an unfinished one, refuses to touch a finished one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.errors import InputError
from voxelocity.observe import Clock, EventLog, environment, system_clock
from voxelocity.planning import DeviceChoice, Planned, make_plan
from voxelocity.report import plan_table
from voxelocity.training.run import Run, RunResult
from voxelocity.training.run_folder import RunFolder, differing_keys, refuse_finished
from voxelocity.training.stop import StopRequest


def train(
    cases: Cases,
    out: Path | str,
    *,
    fold: Fold = 0,
    time_budget_s: float = 0.0,
    seed: int = 0,
    device: DeviceChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
    clock: Clock = system_clock,
    spent_s: float = 0.0,
    stop: StopRequest | None = None,
) -> RunResult:
    """Trains a network on the cases and leaves model, scores and report in `out`.

    An unfinished run in `out` goes on from its last checkpoint if its plan is the one asked for; with `resume` it goes
    on with the plan it was begun with.

    Args:
        cases: what `voxelocity.open` returned.
        out: the run's folder.
        fold: which cases to hold out, or "all".
        time_budget_s: seconds for the whole run; 0 trains for the planned number of steps.
        seed: of the run.
        device: where to train.
        overrides: keys of the plan to fix, nested or dotted.
        resume: go on with the run in `out`, with its own plan; overrides and seed are not looked at.
        overwrite: replace whatever run `out` holds.
        console: where progress is shown; the terminal if not given.
        clock: tells seconds.
        spent_s: seconds the program ran before this call; they count towards the time budget.
        stop: asked between two steps; Ctrl-C and SIGTERM if not given.

    Raises:
        InputError: the data, the configuration or the folder cannot be used.
        InterruptedRunError: it was asked to stop; the state is saved.
        NonFiniteLossError: the loss became NaN or infinite.
    """
    console = console or Console()
    folder = RunFolder(Path(out))
    begin_s = clock() - spent_s
    state = folder.state()
    if resume and overwrite:
        raise InputError(f"train: --resume keeps the run in {folder.path}, --overwrite replaces it; give one of them")
    if resume and state == "empty":
        raise InputError(f"train: {folder.path} holds no run to resume; leave --resume out to start one")
    if state == "finished" and not overwrite:
        raise refuse_finished(folder)
    folder.check()
    if resume:
        overrides, seed, fold = _begun_with(folder)
        time_budget_s = 0.0
    plan_begin_s = clock()
    planned = make_plan(cases, fold=fold, time_budget_s=time_budget_s, seed=seed, device=device, overrides=overrides)
    plan_s = clock() - plan_begin_s
    folder.open()
    # Not `stop or ...`: a request that nobody has made yet is false.
    stop = StopRequest() if stop is None else stop
    with folder.locked():
        if overwrite and state != "empty":
            # Only now, so that a mistake in the new command costs nobody the old run.
            folder.clear()
            state = "empty"
        if state == "unfinished":
            _check_same(folder, planned)
            console.print(f"going on with the unfinished run in {folder.path}", highlight=False)
        else:
            console.print(plan_table(planned.choices))
            folder.write_record({"command": shlex.join(sys.argv), **planned.to_record()})
        timings = {"start": plan_begin_s - begin_s, "plan": plan_s}
        with EventLog.resume(folder.events, begin_s=begin_s, clock=clock) as log, stop:
            log.write("run_started", environment=environment())
            for name, seconds in timings.items():
                log.write("stage", name=name, seconds=seconds)
            return Run(planned=planned, folder=folder, log=log, console=console, clock=clock, stop=stop).execute()


def _begun_with(folder: RunFolder) -> tuple[dict[str, Any], int, Fold]:
    plan = folder.read_plan()
    return plan.to_plain(), plan.seed, folder.read_fold()


def _check_same(folder: RunFolder, planned: Planned) -> None:
    before, now = folder.read_plan().to_plain(), planned.plan.to_plain()
    # Depends on the memory that happens to be free, and changes no result.
    before["data"]["cache"] = now["data"]["cache"]
    lines = differing_keys(before, now)
    if folder.read_fold() != planned.fold:
        lines.append(f"fold: {folder.read_fold()} -> {planned.fold}")
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run with another plan ({'; '.join(lines[:3])}"
            f"{'; ...' if len(lines) > 3 else ''}); go on with its own plan by --resume, or replace it with --overwrite"
        )
