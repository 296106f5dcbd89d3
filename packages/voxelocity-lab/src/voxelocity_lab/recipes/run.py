"""The folder of a recipe's training while it runs: new or resumed, with its record, its events and its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity.parallel import World, join_world, launcher_job
from voxelocity.training.open_session import sample_system
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.session import StopRequest
from voxelocity_lab.recipes.call import Call
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.events import EventLog, events_path, read_events
from voxelocity_observe.core.plain import parse_yaml, read_mapping, yaml_text
from voxelocity_observe.sinks import Outlets, RunStart


@dataclass(kw_only=True)
class Run:
    """A recipe's training in its folder, on one rank.

    Attributes:
        is_resumed: whether it continues an earlier session.
    """

    folder: RunFolder
    log: EventLog
    world: World
    stop: StopRequest
    console: Console
    clock: Clock
    is_resumed: bool

    def warn(self, text: str) -> None:
        """Logs a warning and shows it."""
        self.log.write("warning", text=text)
        if self.world.is_leader:
            self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)


@contextmanager
def open_run(
    call: Call, out: Path, record: Mapping[str, Any], *, spent_s: float = 0.0, clock: Clock = system_clock
) -> Iterator[Run]:
    """A run in the folder `out`, which no other process uses within the block.

    Args:
        call: which says whether a run there is resumed or replaced, and who follows this one.
        out: created if it does not exist.
        record: what is trained, on what and how, as plain data; a run is resumed only with an equal one.
        spent_s: seconds of the time budget that have gone by.
        clock: returns seconds.

    Raises:
        ConfigError: the folder holds a run, and is neither to be resumed nor replaced; or that run differs.
        OutputError: the folder cannot be written, or another process uses it.
    """
    begin_s = clock() - spent_s
    folder = RunFolder(out)
    folder.check_path()
    folder.check()
    with join_world(uses_gpu=call.device.type == "cuda") as world, ExitStack() as stack:
        # A launcher that starts the program again, after a failure, continues its run.
        repeats, job = world.place.num_restarts > 0, launcher_job()
        overwrite = call.overwrite and not (repeats and folder.is_of_job(job))
        is_resumed = bool(
            world.run_on_leader(lambda: _may_resume(folder, record, resume=call.resume or repeats, overwrite=overwrite))
        )
        if world.is_leader:
            folder.open()
            notice = stack.enter_context(folder.locked())
            if not is_resumed:
                folder.clear()
                folder.write_record({**record, "job": job} if job else record)
        path = events_path(out, rank=world.place.rank)
        earlier = read_events(path) if is_resumed and path.exists() else []
        world.gather(0)
        log = stack.enter_context(EventLog.resume(path, begin_s=begin_s, clock=clock))
        run = Run(
            folder=folder, log=log, world=world, stop=stack.enter_context(StopRequest()), console=call.console,
            clock=clock, is_resumed=is_resumed,
        )  # fmt: skip
        if world.is_leader and call.sinks:
            start = RunStart(
                name=out.name, folder=folder.tracking, config=record, environment=environment(), told=earlier
            )
            log.listen(stack.enter_context(Outlets(call.sinks, start, earlier=earlier, warn=run.warn)).write)
            # Nothing else reads them.
            stack.enter_context(sample_system(log))
        if world.is_leader and notice:
            run.warn(notice)
        log.write("run_started", is_resumed=is_resumed, device=str(call.device), record=dict(record))
        yield run


def _may_resume(folder: RunFolder, record: Mapping[str, Any], *, resume: bool, overwrite: bool) -> bool:
    if not folder.holds_run or overwrite:
        return False
    found = read_mapping(folder.record, where="recipe", holds="the record of a run")
    is_other = found.get("recipe") != record.get("recipe")
    if is_other or not resume:
        which = "another kind of run; " if is_other else "a run; continue it with --resume, "
        raise ConfigError(
            f"recipe: {folder.path} already holds {which}replace it with --overwrite, or choose another folder with -o"
        )
    wanted = parse_yaml(yaml_text(record))
    different = sorted(key for key in {*found, *wanted} - {"job"} if found.get(key) != wanted.get(key))
    if different:
        raise ConfigError(
            f"recipe: the run in {folder.path} was started with another value of {', '.join(different)} (see "
            f"{folder.record.name}); repeat the command that started it with --resume, or choose another folder with -o"
        )
    return True
