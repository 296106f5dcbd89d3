"""`voxelocity diagnose`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.cli.command import engine_function
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.place import read_place
from voxelocity_observe.core.terminal_text import printable
from voxelocity_observe.diagnose.request import DiagnoseRequest

# Everything after the first word belongs to the watched program, above all its options.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


@options_of(DiagnoseRequest)
def diagnose(
    asked: Asked[DiagnoseRequest],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND... | FOLDER",
            help="The command to watch, or the folder of a run or a diagnosis.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the diagnosis, as JSON.")] = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Also print the evidence for the diagnosis.")] = False,
) -> None:
    """Watch a training program, find its bottleneck, and suggest what to change. The program's files stay unchanged."""
    given = words or []
    # A folder may have the name of a command, such as "python".
    is_command = len(given) > 1 and shutil.which(given[0]) is not None
    folder = Path(given[0]) if given and not is_command and Path(given[0]).is_dir() else None
    if folder is not None and len(given) > 1:
        raise InputError(
            f"diagnose: {' '.join(given[1:])!r} follows the folder {folder}; put options before it: "
            f"voxelocity diagnose [OPTIONS] {shlex.quote(str(folder))}"
        )
    request = asked.request(command=() if folder is not None else given, folder=folder)
    if folder is None:
        _check_is_alone()
    from voxelocity_observe.diagnose.result import json_text
    from voxelocity_observe.diagnose.session import diagnose_command, diagnose_folder

    if folder is not None:
        reads_runs = engine_function("voxelocity.report.own_run", "facts_of_run")
        session = diagnose_folder(folder, request.out, facts_of_run=reads_runs)
    else:
        with _stdout_is_stderr() if as_json else contextlib.nullcontext(), interrupt.is_raised():
            session = diagnose_command(request, on_start=lambda: _tell(_announcement(request)), tell=_tell)
    if session.diagnosis is None:
        _tell(session.problem)
    elif as_json:
        typer.echo(json_text(session.diagnosis))
    else:
        from voxelocity_observe.core.console import PlainConsole
        from voxelocity_observe.diagnose.render.screen import print_screen

        print_screen(session.diagnosis, PlainConsole(), files=session.files, has_evidence=evidence)
    for note in session.notes:
        _tell(note)
    if session.status:
        raise typer.Exit(session.status)


def _check_is_alone() -> None:
    place = read_place()
    if not place.is_alone:
        raise InputError(
            f"diagnose: {place.launcher} starts it {place.size} times, once for each rank, and none of them would know "
            f"when the others end; put it before the launcher: voxelocity diagnose -- {place.launcher} ..."
        )


def _tell(text: str) -> None:
    # A log on a full disk, say, costs neither the program nor its diagnosis.
    with contextlib.suppress(OSError):
        typer.echo(f"voxelocity: {printable(text)}", err=True)


def _announcement(request: DiagnoseRequest) -> str:
    """What the user must know before the program runs: that we stop it, and what happens to its files."""
    until = " to its own end"
    if not request.is_whole:
        until = f"; it is stopped once enough is recorded, after at most {request.seconds:g} s of steps, and "
        until += f"{'may' if request.keeps_saves else 'cannot'} write files while it is being stopped"
    return f"watching {shlex.join(request.command)}{until}; press Ctrl-C to diagnose what is recorded so far"


@contextlib.contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Within the block, everything that this process and its children print goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
