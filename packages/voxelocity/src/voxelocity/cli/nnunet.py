"""`voxelocity nnunet trainers|install|preprocess`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from voxelocity.core.requests.preprocess import PreprocessRequest
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.cli.command import PlainCommand
from voxelocity_observe.cli.foreign_options import ListingGroup
from voxelocity_observe.core.terminal_text import printable_lines

app = typer.Typer(
    cls=ListingGroup,
    help="Train with nnU-Net's own command and Voxelocity's batches.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("trainers")
def trainers() -> None:
    """Print the folder of our trainers: export nnUNet_extTrainer=$(voxelocity nnunet trainers)"""
    from voxelocity.nnunet import places

    print(places.FOLDER)
    if why := places.why_not_found():
        sys.stderr.write(f"warning: {printable_lines(why)}\n")


@app.command("install")
def install(
    undo: Annotated[bool, typer.Option("--undo", help="Remove the copy.")] = False,
) -> None:
    """Copy our trainers into the installed nnU-Net, which then finds them without an environment variable."""
    from voxelocity.nnunet import places

    place = places.uninstall() if undo else places.install()
    said = f"no longer in {place}" if undo else f"{place}; nnUNetv2_train ... -tr nnUNetTrainerVoxelocity"
    sys.stdout.write(f"{printable_lines(said)}\n")


@app.command("preprocess", cls=PlainCommand)
@options_of(PreprocessRequest)
def preprocess(
    asked: Asked[PreprocessRequest],
    dataset: Annotated[str, typer.Argument(help="Folder of a raw data set, its name in nnUNet_raw, or its number.")],
) -> None:
    """Preprocess DATASET for nnU-Net, with nnU-Net's files and values, faster."""
    request = asked.request(dataset=dataset)
    from voxelocity.nnunet.preprocess.run import preprocess as preprocess_dataset
    from voxelocity_observe.core.console import PlainConsole

    console = PlainConsole()
    with interrupt.is_raised():
        differences = preprocess_dataset(request, console=console)
    for difference in differences:
        console.print(difference.in_words(), soft_wrap=True)
