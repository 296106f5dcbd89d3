"""`voxelocity diagnose`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.command import engine_function, is_given
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.terminal_text import printable

if TYPE_CHECKING:
    from voxelocity_observe.diagnose.watching.command import Limits

# Everything after the first word belongs to the watched program, above all its options.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
_OF_COMMANDS = {
    "seconds": "--seconds",
    "whole": "--whole",
    "no_experiments": "--no-experiments",
    "keep_saves": "--keep-saves",
    "nsys": "--nsys",
}


def diagnose(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND... | FOLDER",
            help="The command to watch, or the folder of a run or of a diagnosis.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to write; the first free 'diagnosis' if not given.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="Most seconds of steps to watch.")] = 120,
    whole: Annotated[bool, typer.Option("--whole", help="Let the program run to its own end, unchanged.")] = False,
    no_experiments: Annotated[
        bool, typer.Option("--no-experiments", help="Do not time single stages on their own after the counted steps.")
    ] = False,
    keep_saves: Annotated[
        bool, typer.Option("--keep-saves", help="Let the program write its files while it is being stopped.")
    ] = False,
    nsys: Annotated[bool, typer.Option("--nsys", help="Record with Nsight Systems too, if installed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the diagnosis, as JSON.")] = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Also print the evidence for the diagnosis.")] = False,
) -> None:
    """Watch a training program, say what holds it back, and what to change. The program's files stay unchanged."""
    given = words or []
    folder = Path(given[0]) if given and Path(given[0]).is_dir() else None
    _refuse(context, given, folder)
    from voxelocity_observe.diagnose.result import json_text
    from voxelocity_observe.diagnose.session import diagnose_command, diagnose_folder
    from voxelocity_observe.diagnose.watching.command import Limits

    if folder is not None:
        reads_runs = engine_function("voxelocity.report.own_run", "facts_of_run")
        session = diagnose_folder(folder, out, facts_of_run=reads_runs)
    else:
        limits = Limits(
            seconds=seconds, is_whole=whole, has_experiments=not no_experiments, has_nsys=nsys, keeps_saves=keep_saves
        )
        with _stdout_is_stderr() if as_json else contextlib.nullcontext(), interrupt.is_raised():
            session = diagnose_command(
                given, out, limits=limits, on_start=lambda: _tell(_announced(given, limits)), tell=_tell
            )
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


def _refuse(context: typer.Context, given: list[str], folder: Path | None) -> None:
    """Returns if the words make sense together.

    Raises:
        InputError: nothing to diagnose was given, or options that do not apply.
    """
    if not given:
        raise InputError("diagnose: nothing to diagnose; give a command: voxelocity diagnose -- python train.py")
    if folder is None:
        return
    if len(given) > 1:
        after = " ".join(given[1:])
        raise InputError(
            f"diagnose: {after!r} follows the folder {folder}; put options before it: "
            f"voxelocity diagnose [OPTIONS] {shlex.quote(str(folder))}"
        )
    meant = [option for name, option in _OF_COMMANDS.items() if is_given(context, name)]
    if meant:
        raise InputError(
            f"diagnose: {', '.join(meant)} given with the folder {folder}, which is already recorded; leave it "
            "out, or give a command"
        )


def _tell(text: str) -> None:
    typer.echo(f"voxelocity: {printable(text)}", err=True)


def _announced(command: list[str], limits: Limits) -> str:
    """What the user must know before the program runs: that we stop it, and what happens to its files."""
    until = " to its own end"
    if not limits.is_whole:
        until = f"; it is stopped once enough is recorded, after at most {limits.seconds:g} s of steps, and "
        until += "may write files while it stops" if limits.keeps_saves else "cannot write files while it stops"
    return f"watching {shlex.join(command)}{until}; Ctrl-C diagnoses what is recorded by then"


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
