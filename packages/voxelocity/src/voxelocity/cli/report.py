"""`voxelocity report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity_observe.core.terminal_text import printable_lines

if TYPE_CHECKING:
    from voxelocity.report import FolderKind
    from voxelocity_observe.document import Document

_OF_RUNS = {"--target": "target_dice", "--margin": "margin_dice", "--margin-mm": "margin_mm"}


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER [FOLDER]",
            help="Folder that train, monitor or diagnose wrote, finished or not; two folders of a kind are compared.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File to write; default: the folder's own page, or ./comparison.html."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="For runs: compare the time to this Dice; default: one that both reached."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="For runs: largest Dice difference that counts as equal; default: 0.01."),
    ] = None,
    margin_mm: Annotated[
        float | None, typer.Option("--margin-mm", help="For runs: the same for HD95, in mm; default: 1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; page only with -o.")] = False,
) -> None:
    """Render the page of a run, a monitor record or a diagnosis again, or compare two of a kind."""
    from voxelocity_observe.core.errors import InputError

    if len(folders) > 2:
        raise InputError(f"report: {len(folders)} folders were given; name one to render, or two to compare")
    of_runs = {"--target": target, "--margin": margin, "--margin-mm": margin_mm}
    given = {name: value for name, value in of_runs.items() if value is not None}
    if len(folders) == 1:
        needless = [*given, *(["--json"] if as_json else [])]
        if needless:
            raise InputError(
                f"report: {', '.join(needless)} is for comparing two folders, but one was given; name a second one"
            )
        typer.echo(printable_lines(str(_render_again(folders[0], out))))
        return
    kind = _kind_of_both(folders)
    if given and kind != "run":
        raise InputError(
            f"report: {', '.join(given)} is for comparing two runs, but {folders[0]} and {folders[1]} hold a {kind} "
            "each; leave it out"
        )
    found = _comparison(kind, folders[0], folders[1], {_OF_RUNS[name]: value for name, value in given.items()})
    _show(found, out or (None if as_json else Path("comparison.html")), as_json=as_json)


def _kind_of_both(folders: list[Path]) -> FolderKind:
    """The kind that both folders have.

    If neither is a monitor record or a diagnosis, the reader of runs reports what they lack.

    Raises:
        InputError: they are of two kinds, or one of them is of no known kind.
    """
    from voxelocity.report import folder_kind
    from voxelocity_observe.core.errors import InputError, missing_path

    kinds = [folder_kind(folder) for folder in folders]
    if set(kinds) <= {"run", None}:
        return "run"
    for folder, kind in zip(folders, kinds, strict=True):
        if kind is None:
            what = f"{folder} holds nothing that can be compared" if folder.exists() else missing_path(folder)
            raise InputError(f"report: {what}; name a folder that 'voxelocity train', 'monitor' or 'diagnose' wrote")
    first, second = kinds
    assert first is not None
    if first != second:
        raise InputError(
            f"report: {folders[0]} is the folder of a {first}, {folders[1]} that of a {second}; name two of one kind"
        )
    return first


def _render_again(folder: Path, out: Path | None) -> Path:
    """The path of the page, drawn from the facts in the folder."""
    from voxelocity.report import folder_kind, read_run, render_page

    kind = folder_kind(folder)
    if kind == "diagnosis":
        from voxelocity_observe.diagnose import session

        return session.draw_again(folder, out)
    if kind == "monitor":
        from voxelocity_observe.monitor import page

        return page.draw_again(folder, out)
    return render_page(read_run(folder), out or folder / "report.html")


def _comparison(kind: FolderKind, first: Path, second: Path, of_runs: Mapping[str, float]) -> Document:
    """What is in both folders, compared; `of_runs` are options of `pair_runs`."""
    import shlex

    if kind == "diagnosis":
        from voxelocity_observe.diagnose.comparison import diagnosis_comparison_document
        from voxelocity_observe.diagnose.result import read_diagnosis

        return diagnosis_comparison_document(read_diagnosis(first), read_diagnosis(second))
    if kind == "monitor":
        from voxelocity_observe.monitor.comparison import monitor_comparison_document
        from voxelocity_observe.monitor.files import read_monitor

        return monitor_comparison_document(read_monitor(first), read_monitor(second))
    from voxelocity.report import comparison_document, pair_runs, read_run, with_command

    pair = pair_runs(read_run(first), read_run(second), **of_runs)
    document = comparison_document(
        pair.runs,
        f"{pair.runs[0].label} and {pair.runs[1].label}",
        target_dice=pair.target_dice,
        target_reason=pair.target_reason,
        parity=pair.parity,
        notices=pair.notices,
    )
    return with_command(document, shlex.join(["voxelocity", "report", str(first), str(second)]))


def _show(document: Document, page: Path | None, *, as_json: bool) -> None:
    """Writes the page if one is asked for, and prints the document, or the figures in it as JSON."""
    import json

    from rich.text import Text

    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.document import document_view, write_page

    if page is not None:
        write_page(document, page)
    if as_json:
        print(json.dumps(document.to_plain(), indent=1, allow_nan=False))
        return
    console = PlainConsole()
    console.print(document_view(document), highlight=False)
    console.print()
    if page is not None:
        # A path must stay on one line, so that the user can copy it.
        console.print(Text(f"see {page}"), highlight=False, soft_wrap=True)
