"""`voxelocity predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import interrupt, options, phases

# On the line of each scan; the table at the end shows all of them.
_SHOWN_CLASSES = 5


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a finished run, an nnU-Net training or a MONAI bundle.")],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="NIfTI files, or folders of them. More models may come first: their logits are averaged.",
            metavar="[MODEL...] INPUT...",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the predictions.")],
    device: options.Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace predictions that exist in --out.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Predict only the scans without a prediction in --out.")
    ] = False,
    network: Annotated[
        str, typer.Option("--network", help="Builder of the run's network, if it is your own: package.module:name.")
    ] = "",
) -> None:
    """Write a segmentation of each INPUT, on its own grid, as OUT/<same name>.nii.gz."""
    chosen_device = options.read_device(device)
    from voxelocity.core.console import PlainConsole
    from voxelocity.infer import PredictedScan, predict_files, split_models
    from voxelocity.observe import phase
    from voxelocity.planning import survey
    from voxelocity.report import count_text, duration_text, ml_text, volume_table

    models, scans = split_models([model, *inputs])
    console = PlainConsole()
    volumes: dict[str, list[tuple[int, float]]] = {}
    num_scans, num_done = 0, 0

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True)

    def show_next() -> None:
        status.update(f"predicting scan {min(num_done + 1, num_scans)} of {num_scans}")

    def start(num: int) -> None:
        nonlocal num_scans
        num_scans = num
        show_next()

    def show(scan: PredictedScan) -> None:
        nonlocal num_done
        num_done += 1
        for name, num_voxels in scan.num_voxels.items():
            volumes.setdefault(name, []).append((num_voxels, num_voxels * scan.voxel_ml))
        largest = sorted(scan.num_voxels, key=lambda name: -scan.num_voxels[name])[:_SHOWN_CLASSES]
        sizes = ", ".join(f"{name} {ml_text(scan.num_voxels[name] * scan.voxel_ml)} ml" for name in largest)
        say(f"{scan.case_id} -> {scan.path}  {duration_text(scan.seconds)}  {sizes}")
        show_next()

    def show_failure(case_id: str, reason: str) -> None:
        nonlocal num_done
        num_done += 1
        say(f"not predicted: {reason}", style="red")
        show_next()

    machine = survey(chosen_device, cache_folder=out)
    phases.start_up_is_over()
    try:
        with interrupt.is_raised(), phase("predict", color="gold"), console.status("reading the model") as status:
            written = predict_files(
                models,
                scans,
                out,
                device=machine.torch_device,
                num_threads=machine.num_cpus,
                overwrite=overwrite,
                resume=resume,
                factory=network,
                on_start=start,
                on_case=show,
                on_failure=show_failure,
                warn=lambda text: say(f"warning: {text}", style="yellow"),
            )
    finally:
        if volumes:
            console.print(volume_table(volumes))
    say(f"predicted {count_text(len(written), 'scan')} into {out}")
