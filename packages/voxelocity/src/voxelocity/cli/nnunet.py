"""`voxelocity nnunet trainers|install`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from voxelocity_observe.cli.foreign_options import ListingGroup
from voxelocity_observe.core.terminal_text import printable_lines

app = typer.Typer(
    cls=ListingGroup,
    help="Train by nnU-Net's own command over Voxelocity's feed.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("trainers")
def trainers() -> None:
    """Print the folder of our trainers: export nnUNet_extTrainer=$(voxelocity nnunet trainers)"""
    from voxelocity.nnunet.places import FOLDER

    print(FOLDER)


@app.command("install")
def install(
    undo: Annotated[bool, typer.Option("--undo", help="Remove the copy.")] = False,
) -> None:
    """Copy our trainers into the installed nnU-Net, which then finds them without a variable."""
    from voxelocity.nnunet import places

    place = places.uninstall() if undo else places.install()
    said = f"no longer in {place}" if undo else f"{place}; nnUNetv2_train ... -tr nnUNetTrainerVoxelocity"
    sys.stdout.write(f"{printable_lines(said)}\n")
