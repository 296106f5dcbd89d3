"""`voxelocity report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.core.terminal_text import printable_lines

if TYPE_CHECKING:
    from voxelocity.report import FolderKind


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER [FOLDER]",
            help="What train, monitor or diagnose wrote, finished or not; two folders of one kind are compared.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File to write; the folder's own page or ./comparison.html if not given."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="For runs: compare the time to this Dice; one that both reached if not given."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="For runs: largest Dice difference that counts as none; 0.01 if not given."),
    ] = None,
    margin_mm: Annotated[
        float | None, typer.Option("--margin-mm", help="For runs: the same for HD95, in mm; 1 if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; page only with -o.")] = False,
) -> None:
    """Render the page of a run, a monitor record or a diagnosis again from its folder, or compare two of one kind."""
    from voxelocity.core.errors import InputError

    if len(folders) > 2:
        raise InputError(f"report: {len(folders)} folders were given; name one to render, or two to compare")
    of_runs = {"--target": target, "--margin": margin, "--margin-mm": margin_mm}
    given = [name for name, value in of_runs.items() if value is not None]
    if len(folders) == 1:
        needless = [*given, *(["--json"] if as_json else [])]
        if needless:
            raise InputError(
                f"report: {', '.join(needless)} is for comparing two folders, but one was given; name a second one"
            )
        typer.echo(printable_lines(str(_render_again(folders[0], out))))
        return
    kind = _kind_of_both(folders)
    if kind == "run":
        _compare_runs(folders[0], folders[1], out, target=target, margin=margin, margin_mm=margin_mm, as_json=as_json)
        return
    if given:
        raise InputError(
            f"report: {', '.join(given)} is for comparing two runs, but {folders[0]} and {folders[1]} hold a {kind} "
            "each; leave it out"
        )
    page = out or (None if as_json else Path("comparison.html"))
    compare = _compare_diagnoses if kind == "diagnosis" else _compare_monitors
    compare(folders[0], folders[1], page, as_json=as_json)


def _kind_of_both(folders: list[Path]) -> FolderKind:
    """The kind that both folders have.

    If neither is a monitor record or a diagnosis, the reader of runs reports what they lack.

    Raises:
        InputError: they are of two kinds, or one of them is of no known kind.
    """
    from voxelocity.core.errors import InputError
    from voxelocity.report import folder_kind

    kinds = [folder_kind(folder) for folder in folders]
    if set(kinds) <= {"run", None}:
        return "run"
    for folder, kind in zip(folders, kinds, strict=True):
        if kind is None:
            raise InputError(
                f"report: {folder} {'holds nothing that can be compared' if folder.exists() else 'does not exist'}; "
                "name a folder that 'voxelocity train', 'monitor' or 'diagnose' wrote"
            )
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
        from voxelocity.diagnosis.session import draw_again

        return draw_again(folder, out)
    if kind == "monitor":
        from voxelocity.monitoring.drawn.folder import draw_again as draw_monitor_again

        return draw_monitor_again(folder, out)
    return render_page(read_run(folder), out or folder / "report.html")


def _compare_diagnoses(first: Path, second: Path, page: Path | None, *, as_json: bool) -> None:
    from voxelocity.diagnosis.comparison.page import render_diagnosis_comparison
    from voxelocity.diagnosis.comparison.text import comparison_lines, comparison_to_plain
    from voxelocity.diagnosis.result.stored import read_diagnosis

    before, after = read_diagnosis(first), read_diagnosis(second)
    if page is not None:
        render_diagnosis_comparison(before, after, page)
    if as_json:
        _print_json(comparison_to_plain(before, after))
    else:
        _print_lines(comparison_lines(before, after), page)


def _compare_monitors(first: Path, second: Path, page: Path | None, *, as_json: bool) -> None:
    from voxelocity.monitoring.drawn.comparison import monitor_comparison_lines, monitor_comparison_to_json
    from voxelocity.monitoring.drawn.comparison_page import render_monitor_comparison
    from voxelocity.monitoring.files import read_monitor

    before, after = read_monitor(first), read_monitor(second)
    if page is not None:
        render_monitor_comparison(before, after, page)
    if as_json:
        _print_json(monitor_comparison_to_json(before, after))
    else:
        _print_lines(monitor_comparison_lines(before, after), page)


def _print_json(record: dict[str, Any]) -> None:
    import json

    print(json.dumps(record, indent=1, allow_nan=False))


def _print_lines(lines: list[str], page: Path | None) -> None:
    """Prints the lines, wrapped at words if they are longer than the terminal is wide; numbers keep their units."""
    import textwrap

    from rich.text import Text

    from voxelocity.core.console import PlainConsole
    from voxelocity.report.views import unbroken

    console = PlainConsole()
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped = textwrap.wrap(
            unbroken(line), console.width, subsequent_indent=indent if line[:1] == " " else "",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        for part in wrapped if len(line) > console.width else [line]:
            console.print(Text(part.replace("\N{NO-BREAK SPACE}", " ")), highlight=False, soft_wrap=True)
    console.print()
    if page is not None:
        # A path must stay on one line, so that the user can copy it.
        console.print(Text(f"see {page}"), highlight=False, soft_wrap=True)


def _compare_runs(
    first: Path,
    second: Path,
    out: Path | None,
    *,
    target: float | None,
    margin: float | None,
    margin_mm: float | None,
    as_json: bool,
) -> None:
    import shlex

    from voxelocity.core.console import PlainConsole
    from voxelocity.report import (
        MARGIN_DICE,
        MARGIN_MM,
        comparison_summary,
        comparison_to_json,
        pair_runs,
        read_run,
        render_comparison,
    )

    pair = pair_runs(
        read_run(first),
        read_run(second),
        target_dice=target,
        margin_dice=MARGIN_DICE if margin is None else margin,
        margin_mm=MARGIN_MM if margin_mm is None else margin_mm,
    )
    title = f"{pair.runs[0].label} and {pair.runs[1].label}"
    page = out or (None if as_json else Path("comparison.html"))
    if page is not None:
        render_comparison(
            pair.runs,
            page,
            title,
            target_dice=pair.target_dice,
            target_reason=pair.target_reason,
            parity=pair.parity,
            notices=pair.notices,
            command=shlex.join(["voxelocity", "report", str(first), str(second)]),
        )
    if as_json:
        record = comparison_to_json(
            pair.runs, title=title, target_dice=pair.target_dice, parity=pair.parity, notices=pair.notices
        )
        _print_json(record)
        return
    console = PlainConsole()
    console.print(comparison_summary(pair))
    console.print(f"see {page}", highlight=False, soft_wrap=True)
