"""`voxelocity predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import interrupt, options, phases


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    inputs: Annotated[list[Path], typer.Argument(help="NIfTI files, or folders of them.", metavar="INPUT...")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the predictions.")],
    device: options.Device = "auto",
) -> None:
    """Write a segmentation of each INPUT, on its own grid, as OUT/<same name>.nii.gz."""
    chosen_device = options.read_device(device)
    from voxelocity.core.console import PlainConsole
    from voxelocity.infer import predict_files
    from voxelocity.observe import phase
    from voxelocity.planning import survey
    from voxelocity.report.quantities import count_text

    console = PlainConsole()
    machine = survey(chosen_device, cache_folder=out)
    phases.start_up_is_over()
    with interrupt.is_raised(), phase("predict", color="gold"):
        written = predict_files(
            run,
            inputs,
            out,
            device=machine.torch_device,
            num_threads=machine.num_cpus,
            on_case=lambda case_id, path: console.print(f"{case_id} -> {path}", highlight=False),
        )
    console.print(f"predicted {count_text(len(written), 'scan')} into {out}", highlight=False)
