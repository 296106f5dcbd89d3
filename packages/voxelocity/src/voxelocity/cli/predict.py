"""`voxelocity predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import options, phases
from voxelocity.core.scan_formats import NAMED_FORMATS, OUTPUTS, format_names, in_words
from voxelocity_observe.cli import interrupt

if TYPE_CHECKING:
    # Imports torch, which --help does not need.
    from voxelocity.infer import PredictedScan, PredictionJob
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.device import Device

# On the line of each scan; the table at the end shows all of them.
_SHOWN_CLASSES = 5

_Model = Annotated[Path, typer.Argument(help="Folder of a run, an export, an nnU-Net training or a MONAI bundle.")]
_Inputs = Annotated[
    list[Path],
    typer.Argument(
        help=f"Scans ({format_names(formats=NAMED_FORMATS)} files, DICOM series), folders of them, or a .csv that "
        "lists them. More models may come first: their logits are averaged.",
        metavar="[MODEL...] INPUT...",
    ),
]
_Out = Annotated[Path, typer.Option("-o", "--out", help="Folder for the predictions.")]
_Format = Annotated[
    str,
    typer.Option(
        "--format",
        help=f"Of the predictions: {in_words(OUTPUTS)}. auto: that of the scans, if all have one of these formats, "
        "else nii.gz.",
    ),
]
_Device = Annotated[
    str, typer.Option("--device", help="cpu, cuda, all or auto. all: every GPU that is visible; they share the scans.")
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace predictions that exist in --out.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Predict only the scans without a prediction in --out.")]
_Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Also write those of every class, to OUT/probabilities.")
]
_Previews = Annotated[bool, typer.Option("--previews", help="Also write a picture of each scan, to OUT/previews.")]
_NoPage = Annotated[bool, typer.Option("--no-page", help="Write no predictions.html.")]
_NoPostprocess = Annotated[
    bool, typer.Option("--no-postprocess", help="Keep all components, also where the model keeps the largest.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be predicted, and the memory it takes; predict nothing.")
]
_Network = Annotated[
    str,
    typer.Option(
        "--network",
        help="Code that may run: the builder of the run's network, if it is your own (package.module:name), or "
        "the compiled file of an export (network.pt2).",
    ),
]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="What runs the network: eager, compile, cuda-graphs, aot-inductor, onnxruntime, openvino, tensorrt; "
        "or auto, the quickest by measurement.",
    ),
]


def predict(
    model: _Model,
    inputs: _Inputs,
    out: _Out,
    format: _Format = "auto",
    device: _Device = "auto",
    overwrite: _Overwrite = False,
    resume: _Resume = False,
    probabilities: _Probabilities = False,
    previews: _Previews = False,
    no_page: _NoPage = False,
    no_postprocess: _NoPostprocess = False,
    dry_run: _DryRun = False,
    network: _Network = "",
    runtime: _Runtime = "eager",
) -> None:
    """Write a segmentation of each INPUT, on its own grid, as OUT/<same name>."""
    is_shared = device == "all"
    chosen_device = options.read_device("cuda" if is_shared else device, others=("all",))
    from voxelocity.infer import plan_job, predict_files, split_models
    from voxelocity.report import volume_table
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.host import cpu_budget
    from voxelocity_observe.core.quantities import count_text
    from voxelocity_observe.document import document_view
    from voxelocity_observe.spans import phase

    models, scans = split_models([model, *inputs])
    console = PlainConsole()
    devices = _devices(models, chosen_device, out=out, is_shared=is_shared)
    phases.start_up_is_over()
    screen = _Screen(console)
    options_of_files: dict[str, Any] = {
        "format": format,
        "overwrite": overwrite,
        "resume": resume,
        "factory": network,
        "on_failure": screen.show_failure,
        "warn": screen.warn,
    }
    if dry_run:
        job = plan_job(models, scans, out, **options_of_files)
        console.print(f"{count_text(len(job.usable_refs), 'scan')} to predict into {out}; nothing is predicted now")
        if (document := job.memory_document(devices[0])) is not None:
            console.print(document_view(document))
        return
    try:
        with interrupt.is_raised(), phase("predict", color="gold"), screen:
            written = predict_files(
                models, scans, out, device=devices, num_threads=cpu_budget(), runtime=runtime,
                postprocess=not no_postprocess, page=not no_page, probabilities=probabilities, previews=previews,
                on_start=screen.start, on_windows=screen.show_pass, on_case=screen.show, on_runtime=screen.say,
                **options_of_files,
            )  # fmt: skip
    finally:
        if screen.volumes:
            console.print(volume_table(screen.volumes))
    screen.say(f"predicted {count_text(len(written), 'scan')} into {out}")


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
    """The bar with the time left, and a line for each scan above it.

    Attributes:
        volumes: by class name, voxels and milliliters in each scan.
    """

    def __init__(self, console: PlainConsole) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # Where nobody watches, it would only print an empty line at its end.
            disable=not console.is_interactive,
        )
        self._task = self._bar.add_task("reading the model", total=None)
        self._job: PredictionJob | None = None
        self._done: set[str] = set()
        self.volumes: dict[str, list[tuple[int, float]]] = {}

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    def start(self, job: PredictionJob) -> None:
        self._job = job
        self._show_next()

    def show_pass(self) -> None:
        self._bar.advance(self._task)

    def show(self, scan: PredictedScan) -> None:
        from voxelocity_observe.core.quantities import duration_text, ml_text

        for name, num_voxels in scan.num_voxels.items():
            self.volumes.setdefault(name, []).append((num_voxels, num_voxels * scan.voxel_ml))
        largest = sorted(scan.num_voxels, key=lambda name: -scan.num_voxels[name])[:_SHOWN_CLASSES]
        sizes = ", ".join(f"{name} {ml_text(scan.num_voxels[name] * scan.voxel_ml)} ml" for name in largest)
        self.say(f"{scan.case_id} -> {scan.path}  {duration_text(scan.seconds)}  {sizes}")
        self._done.add(scan.case_id)
        self._show_next()

    def show_failure(self, case_id: str, reason: str) -> None:
        self.say(f"not predicted: {reason}", style="red")
        self._done.add(case_id)
        self._show_next()

    def _show_next(self) -> None:
        if self._job is None:
            return
        passes = {case_id: self._job.num_passes(case_id) for case_id in self._job.memory}
        num_scans = len(self._job.refs)
        self._bar.update(
            self._task,
            description=f"predicting scan {min(len(self._done) + 1, num_scans)} of {num_scans}",
            completed=sum(num for case_id, num in passes.items() if case_id in self._done),
            total=sum(passes.values()),
        )
