"""A command under the recorder: whether it can be watched at all, checked before it runs for hours; its run, also under
Nsight Systems where that is installed, while the machine is sampled; and the processes that it leaves behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import psutil

from voxelocity_observe.core.command import run_command
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.recorder.process import VARIABLE, Settings
from voxelocity_observe.diagnose.request import DiagnoseRequest
from voxelocity_observe.diagnose.tracing.nsys import MISSING, USED, can_capture, report_groups, wrap
from voxelocity_observe.diagnose.watching.attach import recording_environment
from voxelocity_observe.monitor.samples import Sample
from voxelocity_observe.monitor.sampling import Sampler

_SAMPLE_PERIOD_S = 0.5
# A Python that can be watched is recorded within its first second; scripts may do something else before.
_QUIET_S = 20.0
# With a letter where it is free-threaded, has debug symbols or opens no window.
_PYTHON = re.compile(r"(python|pypy)[0-9.]*[tdw]?(\.exe)?")
_SHUT_OFF = {
    "I": "ignores PYTHONPATH and all of the user's start-up files",
    "E": "ignores PYTHONPATH",
    "S": "reads no start-up files",
}


def refuse_unwatchable(command: Sequence[str]) -> None:
    """Returns if the command may be watched: it is not Python, or a Python that reads start-up files.

    Raises:
        InputError: a Python with -I, -E or -S, which cannot be recorded.
    """
    if not command or not _PYTHON.fullmatch(PurePath(command[0]).name.lower()):
        return
    flag = _shut_off_flag(command[1:])
    if flag:
        raise InputError(
            f"diagnose: {command[0]} with -{flag} {_SHUT_OFF[flag]}, so nothing could be seen of "
            f"'{shlex.join(command)}'; leave out -{flag} while it is diagnosed"
        )


def _shut_off_flag(arguments: Sequence[str]) -> str:
    """The first of Python's own options that keeps a recorder out; "" where none does."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
            continue
        if argument == "--check-hash-based-pycs":
            is_value = True
            continue
        if argument.startswith("--"):
            continue
        if not argument.startswith("-") or argument == "-":
            return ""
        for place, letter in enumerate(argument[1:], start=2):
            if letter in _SHUT_OFF:
                return letter
            if letter in "cm":
                return ""
            if letter in "WX":
                # The value follows in the same word or is the next one.
                is_value = place == len(argument)
                break
    return ""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What watching a command left, besides the recording.

    Attributes:
        status: the command's own exit status.
        sampled_from_s: when sampling began, on the clock of `ProcessFacts.began_s`; None where it never did.
        kernel_groups: of Nsight's report; empty where it made none.
        notes: sentences for the user.
    """

    status: int
    samples: Sequence[Sample]
    sampled_from_s: float | None = None
    kernel_groups: Mapping[str, KernelGroup] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def watch_command(request: DiagnoseRequest, recording: Path, *, tell: Callable[[str], None] | None = None) -> Watched:
    """Runs it to its end, in this terminal.

    Args:
        request: program and arguments, and how they are watched.
        recording: folder for the recorder's files; it exists. Nsight's report goes next to it.
        tell: called once with a sentence where nothing has been recorded for a while.
    """
    wrapped, notes = _wrap_in_nsight(request, recording.parent.absolute())
    variables = recording_environment(
        # The program may change its folder.
        recording.absolute(),
        seconds=request.seconds,
        whole=request.is_whole,
        experiments=request.has_experiments,
        nsys=wrapped is not None,
        keeps_saves=request.keeps_saves,
    )
    samplers: list[Sampler] = []

    def start(pid: int) -> None:
        samplers.append(Sampler(period_s=_SAMPLE_PERIOD_S, pid=pid))
        samplers[0].start()

    def tick() -> None:
        nonlocal tell
        if tell is not None:
            if not any(recording.glob("*")):
                # The program itself may have removed the folder, which is not a reason to fail.
                after = f"within {_QUIET_S:.0f} s"
                tell(f"no Python that can be watched has started {after}; if it is already training, press Ctrl-C")
            tell = None

    try:
        status = run_command(
            wrapped or request.command,
            environment=variables,
            on_start=start,
            tick=None if tell is None else tick,
            tick_s=_QUIET_S,
        )
    finally:
        for sampler in samplers:
            sampler.stop()
    groups: Mapping[str, KernelGroup] = {}
    if wrapped is not None:
        try:
            groups = report_groups(recording.parent)
        except InputError as error:
            notes.append(str(error))
    return Watched(
        status=status,
        samples=tuple(sample for sampler in samplers for sample in sampler.samples),
        sampled_from_s=next((sampler.begin_s for sampler in samplers), None),
        kernel_groups=groups,
        notes=tuple(notes),
    )


def _wrap_in_nsight(request: DiagnoseRequest, folder: Path) -> tuple[list[str] | None, list[str]]:
    """The command under Nsight, None if it records nothing; and sentences for the user."""
    if not request.has_nsys and (request.skips_nsys or not can_capture()):
        return None, []
    wrapped = wrap(request.command, folder)
    if wrapped is None:
        return None, [f"{MISSING}; this time torch.profiler recorded the kernels"]
    return wrapped, [] if request.has_nsys else [USED]


def nothing_recorded_text(command: Sequence[str], status: int) -> str:
    """What to say if a command left no recording: whether it failed first, other reasons, and what to do."""
    said = f"diagnose: nothing was recorded of '{shlex.join(command)}'"
    if status != 0:
        return f"{said}, which ended with status {status} before Python started; see its own messages above"
    return (
        f"{said}: it started no Python that could be watched. Give the command that trains, such as 'python train.py'; "
        "inside a container or a batch system start 'voxelocity diagnose' there; leave out Python's -I, -E and -S, "
        "and leave PYTHONPATH unchanged"
    )


def orphan_processes(recording: Path) -> list[int]:
    """Ids of the processes, such as background jobs, that still run with this recording in their environment, as far as
    we may read it.

    Reads the environment of each process on the machine.
    """
    folder = str(recording.resolve())
    return [process.pid for process in psutil.process_iter() if _folder_of(process) == folder]


def orphan_processes_text(pids: list[int], folder: Path) -> str:
    """What to say about them, and what to do."""
    those = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"
    runs = "still runs and is" if len(pids) == 1 else "still run and are"
    return (
        f"the command has ended, but its {those} {runs} recorded: this report covers what was seen until now; "
        "start it in the foreground, or, when it has ended, run: "
        f"rm {shlex.quote(str(folder / 'diagnosis.json'))} && voxelocity diagnose {shlex.quote(str(folder))}"
    )


def _folder_of(process: psutil.Process) -> str | None:
    """The folder of the recording that the process was started into; None if there is none, or we may not read it."""
    try:
        text = process.environ().get(VARIABLE)
        return None if text is None else Settings.from_json(text).folder
    except (psutil.Error, OSError, ValueError):
        return None
