"""`voxelocity report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; RUN/report.html if not given.")
    ] = None,
) -> None:
    """Render the page of a run again from the facts in its folder."""
    from voxelocity.report import read_run, render_page

    page = out or run / "report.html"
    render_page(read_run(run), page)
    typer.echo(page)
