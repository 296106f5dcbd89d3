"""From a command to the session of a run on this rank: checks and plan, then lock, record, log and sinks."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO
from voxelocity.core.requests.plan import PlanRequest, plan_request
from voxelocity.core.requests.train import MoreTime, TrainRequest
from voxelocity.parallel import World, launcher_job
from voxelocity.planning import Planned, SharedKeys, check_code
from voxelocity.planning.machine import survey
from voxelocity.report import plan_summary, plan_table
from voxelocity.training.caching import SKIPPED
from voxelocity.training.exposure import KEY, exposure_text
from voxelocity.training.resume import (
    SavedRun,
    check_data,
    check_options,
    check_plan,
    record_more_time,
    resumed_keys,
    run_to_resume,
    saved_run_record,
)
from voxelocity.training.run_folder import EXPOSED, RunFolder
from voxelocity.training.session import Session, StopRequest
from voxelocity.training.start_choice import Beginning, begin_from, choose_start, open_sources, plan_from
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.credentials import without_credentials
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.events import EventLog, events_path, read_events
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.monitor.samples import SampleEvents
from voxelocity_observe.monitor.sampling import Sampler
from voxelocity_observe.sinks import Outlets, RunStart, Sink
from voxelocity_observe.spans import report_ended_span

# 1 ms of CPU each, and a line of about 1 KB.
_SAMPLE_PERIOD_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a program hands to a run besides the user's request; none of it changes what is trained."""

    console: Console | None = None
    """Where progress is shown; the terminal if None."""
    clock: Clock = system_clock
    """Returns seconds."""
    spent_s: float = 0.0
    """Seconds the program ran before; they count toward the time budget."""
    stop: StopRequest | None = None
    """Checked between two steps; Ctrl-C and SIGTERM if None."""
    sinks: Sequence[Sink] = ()
    """They also receive every event of the run, as those of `log` do: `voxelocity_observe.sinks` has some.

    One that fails is reported once and left out. A resumed run continues their records.
    """
    plan_view: Literal["short", "full", "none"] = "short"
    """What is shown of the plan of a new run: a few lines, every choice with its reason, or nothing."""
    shared: SharedKeys | None = None
    """Keys of the plan to take over from another run; a run that is resumed has its own."""


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """What a run begins or continues with.

    Attributes:
        beginning: its plan, and the model that it starts from.
        saved: as the run in the folder was started; None for a new one.
        is_finished: only its final validation is repeated.
        skipped: ids of cases that earlier sessions left out.
        timings: seconds by stage up to now.
        taken_s: seconds that it took before it got more time; 0 if it did not.
    """

    beginning: Beginning
    saved: SavedRun | None
    is_finished: bool
    skipped: frozenset[str]
    timings: Mapping[str, float]
    taken_s: float = 0.0

    @property
    def planned(self) -> Planned:
        return self.beginning.planned


def plan_session(cases: Cases, request: TrainRequest, context: RunContext, *, began_s: float) -> SessionPlan:
    """Checks the request against the run's folder, and plans; changes nothing but creates the folder."""
    folder = RunFolder(request.out)
    folder.check_path()
    saved = run_to_resume(folder, request)
    is_finished = saved is not None and folder.is_finished()
    folder.check()
    earlier, taken_s = _events(folder, saved), 0.0
    skipped = frozenset(str(event.get("case_id")) for event in earlier if event["event"] == SKIPPED)
    planning_began_s, wanted = context.clock(), plan_request(request)
    if saved is not None:
        cases = check_data(folder, saved, cases)
    if saved is not None and isinstance(request.time_budget_s, MoreTime):
        taken_s = max((float(event["time_s"]) for event in earlier), default=0.0)
        saved = saved.with_more_time(request.time_budget_s, taken_s=taken_s, is_finished=is_finished)
        is_finished = False
    if saved is not None and request.resume:
        check_code(saved.plan, request.overrides, where=str(folder.record))
        check_options(folder, saved, request)
        keys = resumed_keys(saved, request.overrides, where=str(folder.record))
        # All keys of its plan, those that were taken over too.
        wanted = replace(
            wanted, fold=saved.fold, time_budget_s=AUTO, seed=AUTO, epochs=None, plans=None, overrides=keys
        )
    wanted = replace(wanted, skip_broken=request.skip_broken or bool(skipped))
    beginning = _begin(cases, request, wanted, saved, folder, shared=context.shared)
    if saved is not None:
        check_plan(folder, saved, beginning.planned)
    _check_ranks(beginning.planned)
    folder.open()
    timings = {"start": planning_began_s - began_s, "plan": context.clock() - planning_began_s}
    return SessionPlan(
        beginning=beginning, saved=saved, is_finished=is_finished, taken_s=taken_s, skipped=skipped, timings=timings
    )


def _begin(
    cases: Cases,
    request: TrainRequest,
    wanted: PlanRequest,
    saved: SavedRun | None,
    folder: RunFolder,
    *,
    shared: SharedKeys | None,
) -> Beginning:
    """The plan of the run and the model that it starts from; of several models, the one that starts best.

    Args:
        cases: of the run.
        request: of the command.
        wanted: of the plan.
        saved: the run that is resumed.
        folder: of the run.
        shared: keys of another run.

    Raises:
        InputError: a model cannot be a start, or has certainly learned from a case that would judge it.
        ConfigError: weights are to be held that no model has trained.
    """
    fold = 0 if wanted.fold == AUTO else wanted.fold
    sources = open_sources(request, saved, overrides=wanted.overrides, fold=fold, folder=folder)
    candidates = [
        (source, plan_from(source, cases, wanted, saved=saved, shared=shared)) for source in sources or [None]
    ]
    if len(candidates) > 1:
        return choose_start(candidates)
    source, planned = candidates[0]
    if saved is not None:
        return Beginning(planned=planned, source=source, losses={})
    if source is None and planned.plan.schedule.frozen_share:
        raise ConfigError(
            f"train: schedule.frozen_share={planned.plan.schedule.frozen_share:g} would hold random weights; name a "
            "model to start from with --from, or leave it out"
        )
    return begin_from(source, planned)


def _check_ranks(planned: Planned) -> None:
    """Refuses a plan that the ranks cannot share.

    Raises:
        ConfigError: there are more ranks than patches, not as many proportions or limits as ranks, or a cache in parts
            for a pipeline.
    """
    plan, num_ranks = planned.plan, planned.machine.num_ranks
    batch_size, config = plan.data.batch_size, plan.parallel
    if config.max_bytes and len(config.max_bytes) != num_ranks:
        raise ConfigError(
            f"train: parallel.max_bytes has {count_text(len(config.max_bytes), 'value')} for {num_ranks} ranks; "
            "give one for each, or none"
        )
    if num_ranks == 1:
        return
    if config.mode == "pipeline":
        if plan.data.cache.num_parts > 1:
            raise ConfigError(
                f"train: data.cache.num_parts={plan.data.cache.num_parts} cannot be combined with "
                "parallel.mode=pipeline, where rank 0 makes the whole batch from all cases; set data.cache.num_parts=1"
            )
        return
    if batch_size < num_ranks:
        raise ConfigError(
            f"train: the {num_ranks} ranks cannot share a batch of {batch_size} patches, because each needs one; set "
            f"data.batch_size to at least {num_ranks}, or start {batch_size} ranks"
        )
    if not isinstance(config.balance, str) and len(config.balance) != num_ranks:
        raise ConfigError(
            f"train: parallel.balance has {count_text(len(config.balance), 'proportion')} for {num_ranks} ranks; "
            "give one for each, or auto"
        )


def _events(folder: RunFolder, saved: SavedRun | None) -> list[dict[str, Any]]:
    """Those of earlier sessions of the run that continues."""
    return read_events(folder.events) if saved is not None and folder.events.exists() else []


@contextmanager
def open_session(
    session_plan: SessionPlan,
    request: TrainRequest,
    world: World,
    context: RunContext,
    *,
    began_s: float,
) -> Iterator[Session]:
    """The session of this rank. The leader's holds the folder's lock, writes its record and has the sinks."""
    clock = context.clock
    console = (
        PlainConsole(quiet=not world.is_leader) if context.console is None or not world.is_leader else context.console
    )
    # Not `stop or ...`: a request is false until a stop is asked for.
    stop = StopRequest() if context.stop is None else context.stop
    planned, saved, folder = session_plan.planned, session_plan.saved, RunFolder(request.out)
    earlier = _events(folder, saved) if world.is_leader else []
    if not world.is_leader:
        # The leader's plan on this rank's own device.
        planned = replace(planned, machine=survey(request.device, cache_folder=default_cache_folder()))
        folder.path.mkdir(parents=True, exist_ok=True)
    if not world.is_alone:
        torch.set_num_threads(planned.machine.num_cpus)
    world.set_silence(planned.plan.parallel.silence_s)
    with folder.locked() if world.is_leader else nullcontext("") as notice:
        if world.is_leader:
            _write_beginning(session_plan, folder, overwrite=request.overwrite)
            _show_beginning(session_plan, folder, console, context.plan_view)
        began_s = clock() - world.from_leader(clock() - began_s)
        with (
            EventLog.resume(events_path(folder.path, rank=world.place.rank), begin_s=began_s, clock=clock) as log,
            stop,
        ):
            # A rank that was not there before has no events of earlier sessions, but follows the time of the run.
            log.earlier_s = world.from_leader(log.earlier_s)
            session = Session(
                planned=planned,
                folder=folder,
                log=log,
                console=console,
                clock=clock,
                stop=stop,
                source=session_plan.beginning.source,
                world=world,
            )
            with _announce_session(
                session,
                context.sinks if world.is_leader else (),
                earlier=earlier,
                began_s=began_s,
                timings=session_plan.timings,
            ):
                more_time = _more_time_text(session, session_plan.taken_s)
                for text in filter(None, (notice, more_time, _log_start(session, session_plan))):
                    session.warn(text)
                if saved is not None and saved.device not in ("", planned.machine.device):
                    session.warn(
                        f"train: the run was started on {saved.device} and continues on {planned.machine.device} with "
                        "the same plan; its weights are not bit-for-bit those of a run on one device"
                    )
                yield session


def _show_beginning(session_plan: SessionPlan, folder: RunFolder, console: Console, plan_view: str) -> None:
    """What the run continues, or its plan."""
    if session_plan.saved is not None:
        doing = "validating the finished run" if session_plan.is_finished else "resuming the unfinished run"
        if session_plan.taken_s:
            doing = "giving more time to the run"
        console.print(f"{doing} in {folder.path}", highlight=False, soft_wrap=True)
    elif plan_view == "full":
        console.print(plan_table(session_plan.planned.choices))
    elif plan_view == "short":
        console.print(plan_summary(session_plan.planned.to_record()))


def _write_beginning(session_plan: SessionPlan, folder: RunFolder, *, overwrite: bool) -> None:
    """Marks the folder as holding this run."""
    if overwrite:
        # Only now, so that a mistake in the new command does not lose the old run.
        folder.clear()
    if session_plan.saved is not None:
        if session_plan.taken_s:
            record_more_time(folder, session_plan.saved, taken_s=session_plan.taken_s)
        return
    if folder.holds_run and not overwrite:
        raise OutputError(
            f"train: another process has trained into {folder.path} since this command began; continue that run with "
            "--resume, or choose another folder with -o"
        )
    begin: dict[str, Any] = {"command": typed_command(sys.argv)}
    if job := launcher_job():
        begin["job"] = job
    if start := session_plan.beginning.to_plain():
        begin["start"] = start
    folder.write_record({**begin, **saved_run_record(session_plan.planned)})


def typed_command(argv: Sequence[str]) -> str:
    """The command of these arguments as a user types it, without credentials, also if `python -m voxelocity` ran it.

    In the kernel of a notebook it is the notebook, which Jupyter may name.
    """
    program, *arguments = argv or ("python",)
    if os.path.basename(program) == "ipykernel_launcher.py":
        return shlex.quote(os.path.basename(os.environ.get("JPY_SESSION_NAME", "notebook.ipynb")))
    name = "voxelocity" if Path(program).parts[-2:] == ("voxelocity", "__main__.py") else program
    return shlex.join(without_credentials([name, *arguments]))


def _log_start(session: Session, session_plan: SessionPlan) -> str:
    """Logs what a new run starts from; what its page must say of its scores, "" if they are as good as others."""
    planned = session.planned
    choice = next((choice for choice in planned.choices if choice.key == KEY), None)
    if session_plan.saved is not None or choice is None:
        return ""
    kept = session_plan.beginning.to_plain() | {EXPOSED: dict(session.exposed)}
    session.log.write("start", **kept, why=choice.reason)
    session.console.print(f"starting from {choice.value}: {choice.reason}", highlight=False, soft_wrap=True)
    return exposure_text(planned)


def _more_time_text(session: Session, taken_s: float) -> str:
    """Logs that the run continues beyond its end; what its page must say of it, "" if it does not."""
    if not taken_s:
        return ""
    total_s = session.plan.train.time_budget_s
    session.log.write("extended", taken_s=taken_s, time_budget_s=total_s)
    return (
        f"train: this run took {duration_text(taken_s)} and gets {duration_text(total_s - taken_s)} more, so its "
        "results come from two parts. The learning rate continues as if all of this time had been planned: it rises "
        "again, and the Dice may fall before it rises"
    )


def sample_system(log: EventLog) -> Sampler:
    """System metrics of this program and its GPUs, written into the log within the block, for sinks."""
    return Sampler(os.getpid(), period_s=_SAMPLE_PERIOD_S, on_sample=SampleEvents(log))


@contextmanager
def _announce_session(
    session: Session,
    sinks: Sequence[Sink],
    *,
    earlier: Sequence[Mapping[str, Any]],
    began_s: float,
    timings: Mapping[str, float],
) -> Iterator[None]:
    """Logs the start of the session; passes the events within the block on to the sinks."""
    log, folder, machine = session.log, session.folder, environment()
    facts = RunStart(
        name=folder.path.resolve().name,
        folder=folder.tracking,
        config=session.plan.to_plain(),
        environment=machine,
    )
    samples: AbstractContextManager[object] = nullcontext()
    if sinks:
        # Nothing else reads them.
        samples = sample_system(log)
    with Outlets(sinks, facts, earlier=earlier, warn=session.warn) as outlets, samples:
        log.listen(outlets.write)
        log.write("run_started", environment=machine)
        start_s = system_clock() - (session.clock() - began_s)
        for name, seconds in timings.items():
            log.write("stage", name=name, seconds=seconds)
            # For a monitor's timeline.
            report_ended_span("start-up" if name == "start" else name, start_s=start_s, seconds=seconds, color="silver")
            start_s += seconds
        yield
