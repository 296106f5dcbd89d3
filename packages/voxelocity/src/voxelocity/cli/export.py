"""`voxelocity export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import phases
from voxelocity.core.requests.export import ExportRequest
from voxelocity.infer.runtimes.table import EXPORT_FORMATS
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of


@options_of(ExportRequest, texts={"to": f"Format: {', '.join(EXPORT_FORMATS)}."})
def export(
    asked: Asked[ExportRequest],
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
) -> None:
    """Write a run's network for another runtime, compared with the run; `predict` takes OUT as it takes RUN."""
    request = asked.request(run=run)
    from voxelocity.infer.export import PAGE_NAME, export_run
    from voxelocity.planning import survey
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.spans import phase

    console = PlainConsole()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True)

    machine = survey(request.device, cache_folder=request.out)
    phases.start_up_is_over()
    with interrupt.is_raised(), phase("export", color="gold"), console.status("exporting"):
        record = export_run(
            request,
            device=machine.torch_device,
            num_threads=machine.num_cpus,
            note=say,
            warn=lambda text: say(f"warning: {text}", style="yellow"),
        )
    say(record.verdict())
    say(f"exported to {request.out}; see {request.out / PAGE_NAME}")
