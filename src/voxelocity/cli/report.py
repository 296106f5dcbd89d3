"""`voxelocity report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from voxelocity.report import FolderKind


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN]", help="Folder of a run, or of two to compare; finished or not.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File to write; RUN/report.html or ./comparison.html if not given."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="Dice whose time is compared; one that both runs reached if not given."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="Largest difference of Dice that counts as none; 0.01 if not given."),
    ] = None,
    margin_mm: Annotated[
        float | None, typer.Option("--margin-mm", help="Likewise of HD95, in mm; 1 if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; a page only with -o.")] = False,
) -> None:
    """Render the page of a run again from the facts in its folder, or compare two runs."""
    from voxelocity.core.errors import InputError

    if len(folders) > 2:
        raise InputError(f"report: {len(folders)} folders were given; name one to render, or two to compare")
    _check_kinds(folders)
    if len(folders) == 1:
        given = {"--target": target, "--margin": margin, "--margin-mm": margin_mm, "--json": as_json or None}
        needless = [name for name, value in given.items() if value is not None]
        if needless:
            raise InputError(
                f"report: {', '.join(needless)} is for comparing two runs, but one was given; name another"
            )
        _render_run(folders[0], out)
    else:
        _compare_runs(folders[0], folders[1], out, target=target, margin=margin, margin_mm=margin_mm, as_json=as_json)


def _check_kinds(folders: list[Path]) -> None:
    """Passes silently where all folders are ones that `report` renders.

    A folder of no known kind is left to the reader of runs, which says what it lacks.

    Raises:
        InputError: one is of a kind that has no page here.
    """
    from voxelocity.core.errors import InputError
    from voxelocity.report import folder_kind

    kinds: dict[Path, FolderKind] = {folder: folder_kind(folder) or "run" for folder in folders}
    for folder, kind in kinds.items():
        if kind != "run":
            raise InputError(f"report: {folder} is the folder of a {kind}, not of a run; name what `train` wrote")


def _render_run(run: Path, out: Path | None) -> None:
    from voxelocity.report import read_run, render_page

    page = out or run / "report.html"
    render_page(read_run(run), page)
    typer.echo(page)


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
    import json
    import shlex

    from rich.console import Console

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
        print(json.dumps(record, indent=1))
        return
    console = Console()
    console.print(comparison_summary(pair))
    console.print(f"see {page}", highlight=False, soft_wrap=True)
