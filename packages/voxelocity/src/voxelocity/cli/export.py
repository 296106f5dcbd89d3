"""`voxelocity export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import options, phases
from voxelocity.infer.runtimes.table import EXPORT_FORMATS
from voxelocity_observe.cli import interrupt


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the export.")],
    to: Annotated[str, typer.Option("--to", help=f"Format: {', '.join(EXPORT_FORMATS)}.")],
    device: options.Device = "auto",
    cases: Annotated[
        int, typer.Option("--cases", min=0, help="Validation cases to compare, at most; 0 compares noise.")
    ] = 5,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export in --out.")] = False,
    network: Annotated[
        str, typer.Option("--network", help="Builder of the run's network, if it is your own: package.module:name.")
    ] = "",
) -> None:
    """Write a run's network for another runtime, compared with the run; `predict` takes OUT as it takes RUN."""
    chosen_device = options.read_device(device)
    from voxelocity.infer.export import PAGE_NAME, export_run
    from voxelocity.planning import survey
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.spans import phase

    console = PlainConsole()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True)

    machine = survey(chosen_device, cache_folder=out)
    phases.start_up_is_over()
    with interrupt.is_raised(), phase("export", color="gold"), console.status("exporting"):
        record = export_run(
            run,
            out,
            to=to,
            device=machine.torch_device,
            max_cases=cases,
            num_threads=machine.num_cpus,
            factory=network,
            overwrite=overwrite,
            note=say,
            warn=lambda text: say(f"warning: {text}", style="yellow"),
        )
    say(record.verdict())
    say(f"exported to {out}; see {out / PAGE_NAME}")
