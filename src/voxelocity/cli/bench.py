"""`voxelocity bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import interrupt


def bench(
    scenario: Annotated[
        str,
        typer.Argument(help="cache, patches, transforms, feed, windows, build, training or monai; all if not given."),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny volumes, in seconds: shows that it runs here, compares nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for bench_SCENARIO.json; nothing is written without it.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of real scans; $VOXELOCITY_DATA if not given.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Folder that keeps the phantoms; a temporary one if not given.")
    ] = None,
) -> None:
    """Measure Voxelocity and its peers side by side on this machine."""
    from rich.console import Console

    from voxelocity.bench import NAMES, comparison_table, run_scenario

    console = Console()
    with interrupt.is_raised():
        for name in [scenario] if scenario else NAMES:
            record = run_scenario(
                name,
                quick=quick,
                on_comparison=lambda comparison: console.print(comparison_table(comparison), "", highlight=False),
                work=work,
                data=data,
            )
            if out is not None:
                console.print(f"see {record.write(out)}", highlight=False)
