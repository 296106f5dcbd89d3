"""`voxelocity monitor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def monitor(
    command: Annotated[list[str], typer.Argument(help="The command with its arguments; put '--' first if in doubt.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the record; default: monitor/DATE_TIME.")
    ] = None,
    period: Annotated[float, typer.Option("--period", help="Seconds between two samples, 0.1 to 60.")] = 0.5,
    live: Annotated[
        bool, typer.Option("--live", help="Show the machine's state in the last lines of the terminal.")
    ] = False,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no page and no picture at the end.")] = False,
    openmetrics: Annotated[
        Path | None,
        typer.Option(
            "--openmetrics", help="File that holds the newest sample, for node_exporter's textfile collector."
        ),
    ] = None,
) -> None:
    """Run COMMAND and record the machine: cores, memory, disks, network, GPUs.

    Exits with the command's own status.
    """
    from voxelocity_observe.monitor.watch import watch

    raise typer.Exit(
        watch(command, folder=out, period_s=period, is_live=live, has_page=not no_page, openmetrics=openmetrics)
    )
