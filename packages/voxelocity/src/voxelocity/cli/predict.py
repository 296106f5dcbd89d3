"""`voxelocity predict`."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import phases
from voxelocity.core.requests.predict import PredictRequest
from voxelocity.core.scan_formats import NAMED_FORMATS, OUTPUTS, format_names, in_words
from voxelocity.infer.runtimes.table import RUNTIMES
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import InterruptedRunError

if TYPE_CHECKING:
    # Imports torch, which --help does not need.
    from voxelocity.infer import PredictedScan
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.device import Device

# On the line of each scan; the table at the end shows all of them.
_SHOWN_CLASSES = 5

_Model = Annotated[
    Path, typer.Argument(help="Folder of a run, an export, an nnU-Net training (or its .zip) or a MONAI bundle.")
]
_Inputs = Annotated[
    list[Path],
    typer.Argument(
        help=f"Scans ({format_names(formats=NAMED_FORMATS)} files, DICOM series), folders of them, or a .csv that "
        "lists them. Several models are averaged.",
        metavar="[MODEL...] INPUT...",
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be predicted and how much memory it takes, without predicting."),
]


@options_of(
    PredictRequest,
    texts={
        "format": f"Of the predictions: {in_words(OUTPUTS)}. auto: the scans' format if it is one of these, else "
        "nii.gz.",
        "runtime": f"What runs the network: {', '.join(RUNTIMES)}; or auto, which measures the fastest.",
    },
)
def predict(asked: Asked[PredictRequest], model: _Model, inputs: _Inputs, dry_run: _DryRun = False) -> None:
    """Write a segmentation of each INPUT, on its own grid, as OUT/<same name>."""
    chosen = asked.values.get("device", "auto")
    from voxelocity.infer import PredictionHooks, plan_job, predict_scans, split_models
    from voxelocity.report import volume_table
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.quantities import count_text
    from voxelocity_observe.document import document_view
    from voxelocity_observe.spans import phase

    models, scans = split_models([model, *inputs])
    request = asked.request(models=models, inputs=scans)
    console = PlainConsole()
    devices = _devices(models, "cuda" if chosen == "all" else chosen, out=request.out, is_shared=chosen == "all")
    request = replace(request, device=devices)
    phases.start_up_is_over()
    screen = _Screen(console)
    if dry_run:
        job = plan_job(request, on_failure=screen.show_failure, warn=screen.warn)
        console.print(
            f"{count_text(len(job.usable_refs), 'scan')} to predict into {request.out}; nothing is predicted now"
        )
        for text in job.outputs(request):
            console.print(text, soft_wrap=True)
        if (document := job.memory_document(devices[0])) is not None:
            console.print(document_view(document))
        return
    hooks = PredictionHooks(
        on_case=screen.show, on_failure=screen.show_failure, warn=screen.warn, on_runtime=screen.say, console=console,
    )  # fmt: skip
    try:
        with interrupt.is_raised(), phase("predict", color="gold"):
            written = predict_scans(request, hooks)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"predict: stopped by Ctrl-C; {request.left_to_do(screen.num_written)}",
            signal_number=signal.SIGINT,
        ) from None
    finally:
        if screen.volumes:
            console.print(volume_table(screen.volumes))
    screen.say(f"predicted {count_text(len(written), 'scan')} into {request.out}")


def _devices(models: list[Path], chosen: Any, *, out: Path, is_shared: bool) -> tuple[Device, ...]:
    """Where networks run; importing torch takes about a second, which an export for the CPU does not need."""
    from voxelocity.infer import runs_without_torch
    from voxelocity_observe.core.device import HOST, all_gpus

    if runs_without_torch(models, chosen):
        return (HOST,)
    from voxelocity.planning import survey

    machine = survey(chosen, cache_folder=out)
    return all_gpus() if is_shared else (machine.torch_device,)


class _Screen:
    """A line for each scan, above the bar.

    Attributes:
        num_written: predictions.
        volumes: by class name, voxels and milliliters in each scan.
    """

    def __init__(self, console: PlainConsole) -> None:
        self._console = console
        self.num_written = 0
        self.volumes: dict[str, list[tuple[int, float]]] = {}

    def say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    def show(self, scan: PredictedScan) -> None:
        from voxelocity_observe.core.quantities import duration_text, ml_text

        self.num_written += 1
        for name, num_voxels in scan.num_voxels.items():
            self.volumes.setdefault(name, []).append((num_voxels, num_voxels * scan.voxel_ml))
        largest = sorted(scan.num_voxels, key=lambda name: -scan.num_voxels[name])[:_SHOWN_CLASSES]
        sizes = ", ".join(f"{name} {ml_text(scan.num_voxels[name] * scan.voxel_ml)} ml" for name in largest)
        self.say(f"{scan.case_id} -> {scan.path}  {duration_text(scan.seconds)}  {sizes}")

    def show_failure(self, case_id: str, reason: str) -> None:
        self.say(f"not predicted: {reason}", style="red")
