"""`voxelocity launch`."""

from __future__ import annotations

from typing import Annotated

import typer

from voxelocity.core.errors import ConfigError

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def launch(
    context: typer.Context,
    num_ranks: Annotated[
        int, typer.Option("-n", "--ranks", min=1, help="Processes on this machine, one for each GPU.")
    ],
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="How often a training whose process died is resumed.")
    ] = 0,
) -> None:
    """Start a command on several processes that train together: launch -n 2 train DATASET -o RUN."""
    if context.args[:1] != ["train"]:
        given = context.args[0] if context.args else "nothing"
        raise ConfigError(
            f"launch: {given} cannot run on several processes; write "
            f"voxelocity launch -n {num_ranks} train DATASET -o RUN"
        )
    from voxelocity.parallel.launch import run_ranks

    raise typer.Exit(run_ranks(context.args, num_ranks=num_ranks, max_restarts=max_restarts))
