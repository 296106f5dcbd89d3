"""`voxelocity bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity.cli import interrupt

if TYPE_CHECKING:
    from rich.console import Console

    from voxelocity.report import RunFacts


def bench(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Ours and the peers: cache, patches, transforms, feed, windows, build, training or monai; all of "
            "these if not given. One setting, off and on: amp, compile or memory-format; on a GPU also tf32, "
            "cudnn-benchmark or allocator."
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny volumes, in seconds: shows that it runs here, compares nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Folder for bench_SCENARIO.json, and a page for a setting; nothing is written without it.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of real scans; $VOXELOCITY_DATA if not given.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Folder that keeps the phantoms; a temporary one if not given.")
    ] = None,
) -> None:
    """Measure Voxelocity and its peers, or a training with a setting off and on, side by side on this machine."""
    from voxelocity.bench import NAMES, SWITCHES, comparison_table, run_scenario
    from voxelocity.core.console import PlainConsole

    console = PlainConsole()
    with interrupt.is_raised():
        if scenario in SWITCHES:
            _bench_switch(console, scenario, quick=quick, out=out, data=data, work=work)
            return
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


def _bench_switch(
    console: Console, name: str, *, quick: bool, out: Path | None, data: Path | None, work: Path | None
) -> None:
    from voxelocity.bench import run_switch
    from voxelocity.core.errors import InputError
    from voxelocity.report import comparison_summary, duration_text, view_table

    if data is not None:
        raise InputError(f"bench: '{name}' trains on phantoms and has no use for --data; leave it out")

    def tell(label: str, run: RunFacts) -> None:
        console.print(f"{label}: trained in {duration_text(run.seconds)}", highlight=False)

    report = run_switch(name, quick=quick, work=work, on_run=tell)
    console.print("", report.title, style="bold")
    console.print(report.summary, "", highlight=False)
    console.print(comparison_summary(report.pair), "")
    for table in report.tables():
        console.print(view_table(table), "")
    if report.switched.switch.published:
        console.print(report.switched.switch.published, highlight=False)
    for path in report.write(out) if out is not None else ():
        console.print(f"see {path}", highlight=False, soft_wrap=True)
