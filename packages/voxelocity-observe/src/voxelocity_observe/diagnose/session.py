"""From a command, or a folder, to a diagnosis with its files: run, record, read, judge, write."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxelocity_observe.core.credentials import without_credentials
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import CommandError, InputError, OutputError
from voxelocity_observe.core.links import check_links
from voxelocity_observe.diagnose.facts import Facts, KernelGroup, ProfileFacts
from voxelocity_observe.diagnose.facts.host import host_facts, watched_stretch_s
from voxelocity_observe.diagnose.facts.read import read_facts
from voxelocity_observe.diagnose.judging import diagnose
from voxelocity_observe.diagnose.render.page import diagnosis_document, render_diagnosis_page
from voxelocity_observe.diagnose.render.screen import DiagnosisFiles
from voxelocity_observe.diagnose.request import DiagnoseRequest
from voxelocity_observe.diagnose.result import FILE_NAME, Diagnosis, read_diagnosis, write_diagnosis
from voxelocity_observe.diagnose.tracing.kernels import write_kernels
from voxelocity_observe.diagnose.tracing.timeline import write_timeline
from voxelocity_observe.diagnose.tracing.trace import profile_facts
from voxelocity_observe.diagnose.watching.command import (
    Watched,
    nothing_recorded_text,
    orphan_processes,
    orphan_processes_text,
    refuse_unwatchable,
    watch_command,
)

_DEFAULT_FOLDER = Path("diagnosis")
PAGE_NAME = "diagnosis.html"
RECORDING_NAME = "recording"
KERNELS_NAME = "kernels.json"
_TIMELINE_NAME = "timeline.json"
_TRACES = ("*trace*.json", "*trace*.json.gz")
_VERSIONS = ("python", "torch", "monai", "numpy")


@dataclass(frozen=True, kw_only=True)
class DiagnosisOutcome:
    """The outcome of diagnosing.

    Attributes:
        diagnosis: None where nothing was seen at all; `problem` then says why, and what to do.
        status: exit status: 0 if the program was ended because enough was seen, else the program's own.
        notes: sentences for the user.
    """

    diagnosis: Diagnosis | None
    files: DiagnosisFiles = field(default_factory=DiagnosisFiles)
    status: int = 0
    problem: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line with what holds the program back."""
        found = self.problem if self.diagnosis is None else self.diagnosis.verdict
        return f"DiagnosisOutcome({found!r}, page: {str(self.files.page)!r})"

    def _repr_html_(self) -> str | None:
        """How notebooks show it: the page."""
        return None if self.diagnosis is None else diagnosis_document(self.diagnosis)._repr_html_()


def diagnose_command(
    request: DiagnoseRequest,
    *,
    on_start: Callable[[], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> DiagnosisOutcome:
    """Runs the command in this terminal, watches it, and writes and returns what holds it back.

    The command keeps its arguments, input and output. Ctrl-C reaches it as it would without us; what was seen until
    then is diagnosed. Blocks until the command has ended.

    Args:
        request: program and arguments, how they are watched, and the folder for everything that is written.
        on_start: called right before the command runs, after all checks.
        tell: called with what the user must know while the command runs.

    Raises:
        InputError: a Python that cannot be recorded.
        CommandError: the command cannot be started; nothing is left in the folder.
        OutputError: the folder is in use or cannot be written.
    """
    command = request.command
    refuse_unwatchable(command)
    place = _make_folder(request.out)
    if on_start is not None:
        on_start()
    recording = place / RECORDING_NAME
    try:
        watched = watch_command(request, recording, tell=tell)
    except CommandError:
        _remove_empty(recording, place)
        raise
    status, notes = watched.status, watched.notes
    left = orphan_processes(recording)
    # The workers of a command that was killed are about to notice and end.
    if left and status == 0:
        notes = (*notes, orphan_processes_text(left, place))
    # The program itself may have removed the folder.
    if not recording.is_dir() or not any(recording.iterdir()):
        _remove_empty(recording, place)
        problem = nothing_recorded_text(command, status)
        return DiagnosisOutcome(diagnosis=None, status=status or 2, problem=problem, notes=notes)
    try:
        facts = read_facts(recording)
    except InputError as error:
        return DiagnosisOutcome(diagnosis=None, status=status or 2, problem=str(error), notes=notes)
    facts = _completed(facts, command=command, watched=watched, folder=place)
    was_ended_by_us = facts.ended is not None and facts.ended.reason == "limit" and not request.is_whole
    diagnosis = diagnose(facts)
    files, problem = _write_outcome(diagnosis, place, groups=watched.kernel_groups)
    status = 0 if was_ended_by_us else status
    notes = (*notes, *([problem] if problem else []))
    return DiagnosisOutcome(diagnosis=diagnosis, files=files, status=status or (1 if problem else 0), notes=notes)


def diagnose_folder(
    folder: Path, out: Path | None = None, *, facts_of_run: Callable[[Path], Facts] | None = None
) -> DiagnosisOutcome:
    """The diagnosis of a run of `voxelocity train`, or the one in a folder, with its page drawn again.

    Args:
        folder: of a run (its diagnosis is written into "diagnosis" below it), of a diagnosis, or of an
            interrupted one that left only its recording.
        out: another folder to write to.
        facts_of_run: reads a run; without it a run is none of these.

    Raises:
        InputError: the folder is none of these, or a run without `facts_of_run`.
        OutputError: the page cannot be written.
    """
    if (folder / FILE_NAME).exists():
        diagnosis = read_diagnosis(folder)
    elif facts_of_run is not None and (folder / "run.yaml").exists():
        diagnosis = diagnose(facts_of_run(folder))
        if out is None:
            # The run may come from someone else.
            check_links(folder, ("diagnosis",), where="diagnose", deep=False)
        return DiagnosisOutcome(diagnosis=diagnosis, files=write_all(diagnosis, out or folder / "diagnosis"))
    elif (folder / RECORDING_NAME).is_dir():
        diagnosis = diagnose(_profiled(read_facts(folder / RECORDING_NAME), folder))
    elif (folder / "run.yaml").exists():
        raise InputError(
            f"diagnose: {folder} is a run of `voxelocity train`, which needs the engine; `pip install voxelocity` "
            "in this environment"
        )
    else:
        raise InputError(
            f"diagnose: {folder} holds neither a run (run.yaml) nor a diagnosis ({FILE_NAME}); name such a folder, or "
            "give a command: voxelocity diagnose -- python train.py"
        )
    return DiagnosisOutcome(diagnosis=diagnosis, files=write_all(diagnosis, out or folder, source=folder))


def _write_outcome(
    diagnosis: Diagnosis, folder: Path, *, groups: Mapping[str, KernelGroup]
) -> tuple[DiagnosisFiles, str]:
    """Where it was written; on a full disk nowhere, and why: minutes of watching are not lost over a file."""
    profile = diagnosis.facts.profile
    groups = groups or (profile.groups if profile is not None else {})
    try:
        if profile is None and diagnosis.facts.steps:
            write_timeline(diagnosis.facts, folder / _TIMELINE_NAME)
        if groups:
            write_kernels(groups, folder / KERNELS_NAME)
        return write_all(diagnosis, folder), ""
    except (OutputError, OSError) as error:
        return DiagnosisFiles(), f"{error}; the diagnosis is only on standard output"


def write_all(diagnosis: Diagnosis, folder: Path, *, source: Path | None = None) -> DiagnosisFiles:
    """Where page and JSON now are in the folder, next to what the recording left there or in `source`.

    Raises:
        OutputError: one cannot be written.
    """
    places = [folder, folder / RECORDING_NAME, *([source, source / RECORDING_NAME] if source else [])]
    found = _trace(diagnosis, places)
    return DiagnosisFiles(
        json=write_diagnosis(diagnosis, folder),
        page=_draw(diagnosis, folder / PAGE_NAME, found),
        trace=found,
        kernels=_first([place / KERNELS_NAME for place in places]),
    )


def draw_again(folder: Path, page: Path | None = None) -> Path:
    """The page of the diagnosis in a folder, drawn again; in the folder if no other place is given.

    Raises:
        InputError: the folder holds no diagnosis.
        OutputError: the page cannot be written.
    """
    diagnosis = read_diagnosis(folder)
    return _draw(diagnosis, page or folder / PAGE_NAME, _trace(diagnosis, [folder, folder / RECORDING_NAME]))


def _trace(diagnosis: Diagnosis, places: Sequence[Path]) -> Path | None:
    """Path of the profiler's trace, or of the timeline instead; None if there is neither."""
    trace = diagnosis.facts.profile.trace if diagnosis.facts.profile else ""
    names = [Path(trace).name] if trace else []
    return _first([place / name for name in [*names, _TIMELINE_NAME] for place in places])


def _draw(diagnosis: Diagnosis, page: Path, trace: Path | None) -> Path:
    return render_diagnosis_page(diagnosis, page, trace=os.path.relpath(trace, page.parent) if trace else "")


def _completed(facts: Facts, *, command: Sequence[str], watched: Watched, folder: Path) -> Facts:
    """The facts with what only the command line knows: command, status, machine and profile."""
    facts = _profiled(facts, folder)
    files = facts.files.largest if facts.files is not None else ()
    within_s = watched_stretch_s(facts, sampled_from_s=watched.sampled_from_s)
    return replace(
        facts,
        command=tuple(without_credentials(command)),
        status=watched.status,
        host=host_facts(watched.samples, within_s=within_s, files=files),
        environment=_environment(facts),
    )


def _profiled(facts: Facts, folder: Path) -> Facts:
    """The facts with what the profiler's trace next to them shows."""
    profile, problem = _profile(folder / RECORDING_NAME)
    not_measured = (*facts.not_measured, *([problem] if problem else []))
    return replace(facts, profile=profile or facts.profile, not_measured=not_measured)


def _profile(recording: Path) -> tuple[ProfileFacts | None, str]:
    """What the profiler's trace shows, or why not; the rest survives a trace that cannot be read."""
    trace = _first(sorted(path for pattern in _TRACES for path in recording.glob(pattern)))
    if trace is None:
        return None, ""
    try:
        return profile_facts(trace), ""
    except (InputError, OSError) as error:
        return None, f"kernels and operators: {error}"


def _environment(facts: Facts) -> dict[str, object]:
    """This machine with the program's own versions, because the program's Python may be another one."""
    versions = {name: facts.main.versions.get(name) for name in _VERSIONS} if facts.main.versions else {}
    ours = environment()
    known = {name: version for name, version in versions.items() if version is not None or name != "python"}
    return {**ours, **known, **facts.environment}


def _free_folder() -> Path:
    """A new folder, made at once: several diagnoses may begin at the same moment."""
    folder, numbers = _DEFAULT_FOLDER, itertools.count(2)
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = Path(f"{_DEFAULT_FOLDER}-{next(numbers)}")


def _make_folder(chosen: Path | None) -> Path:
    """The folder, a new one if none was chosen, with a place for the recording in it.

    Raises:
        OutputError: it has files in it, or cannot be made.
    """
    folder = chosen or _DEFAULT_FOLDER
    try:
        folder = chosen or _free_folder()
        if folder.exists() and any(folder.iterdir()):
            raise OutputError(f"diagnose: {folder} is not empty; remove it, or choose another folder with -o")
        (folder / RECORDING_NAME).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"diagnose: cannot make {folder / RECORDING_NAME} ({error.strerror}); choose another folder with -o"
        ) from error
    return folder


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not os.listdir(folder):
            folder.rmdir()


def _first(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)
