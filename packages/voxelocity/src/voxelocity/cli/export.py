"""`voxelocity export`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import phases
from voxelocity.core.requests.export import ExportRequest
from voxelocity.infer.runtimes.table import EXPORT_FORMATS
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of


@options_of(
    ExportRequest, texts={"to": f"Format: {', '.join(EXPORT_FORMATS)}, or nnunet for a results folder of nnU-Net."}
)
def export(
    asked: Asked[ExportRequest],
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
) -> None:
    """Export a run's network for another runtime and check it against the run; `predict` also takes OUT."""
    request = asked.request(run=run)
    if request.to == "nnunet":
        _export_nnunet(request)
        return
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


def _export_nnunet(request: ExportRequest) -> None:
    from voxelocity.nnunet.export import export_nnunet
    from voxelocity_observe.core.console import PlainConsole

    console = PlainConsole()
    phases.start_up_is_over()
    with interrupt.is_raised():
        difference = export_nnunet(request, note=lambda text: console.print(text, soft_wrap=True))
    console.print(
        f"exported to {request.out}; its logits differ from the run's by {difference:.2g} of the largest; next: "
        f"nnUNetv2_predict_from_modelfolder -i SCANS -o PREDICTIONS -m {shlex.quote(str(request.out))} -f 0",
        soft_wrap=True,
    )
