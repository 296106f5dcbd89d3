"""`voxelocity launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity_observe.core.errors import ConfigError

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def launch(
    context: typer.Context,
    num_ranks: Annotated[
        int, typer.Option("-n", "--ranks", min=1, help="Processes on this machine or on each node, one for each GPU.")
    ],
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="How often to resume a training whose process died.")
    ] = 0,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit it to SLURM; the job resumes automatically after the time limit.")
    ] = False,
    num_nodes: Annotated[int, typer.Option("-N", "--nodes", min=1, help="With --slurm: machines.")] = 1,
    time: Annotated[str, typer.Option("--time", help="With --slurm: time limit of the job, such as 8h.")] = "24h",
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", help="With --slurm: an option of sbatch, as in --sbatch=--partition=gpu. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --slurm: print the job's script only.")] = False,
) -> None:
    """Train on several GPUs or processes: launch -n 2 train DATASET -o RUN."""
    if context.args[:1] not in (["train"], ["recipe"], ["tune"]):
        given = context.args[0] if context.args else "nothing"
        raise ConfigError(
            f"launch: {given} cannot run on several processes; write "
            f"voxelocity launch -n {num_ranks} train DATASET -o RUN"
        )
    if slurm:
        _submit(context.args, num_nodes, num_ranks, time=time, options=sbatch or [], dry_run=dry_run)
        return
    if num_nodes > 1 or dry_run or sbatch:
        raise ConfigError(
            "launch: --nodes, --sbatch and --dry-run are for SLURM jobs; add --slurm, or start the nodes with torchrun"
        )
    from voxelocity.parallel.launch import run_ranks

    raise typer.Exit(run_ranks(context.args, num_ranks=num_ranks, max_restarts=max_restarts))


def _submit(
    arguments: list[str], num_nodes: int, num_ranks: int, *, time: str, options: list[str], dry_run: bool
) -> None:
    """Writes RUN.sbatch next to the run's folder, and submits it; the job prints to RUN.log."""
    from voxelocity.parallel.slurm import job_script, submit
    from voxelocity_observe.core.quantities import parse_duration_s

    out = _folder_of(arguments)
    script = job_script(
        arguments,
        name=out.name,
        log=out.with_name(f"{out.name}.log"),
        num_nodes=num_nodes,
        num_ranks=num_ranks,
        limit_s=parse_duration_s(time),
        options=options,
    )
    if dry_run:
        typer.echo(script, nl=False)
        return
    path = out.with_name(f"{out.name}.sbatch")
    said = submit(script, path)
    typer.echo(f"{said}: {path}, which prints to {out.with_name(f'{out.name}.log')}")


def _folder_of(arguments: list[str]) -> Path:
    """The run's folder in the arguments of `train`.

    Raises:
        ConfigError: it is missing.
    """
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        # As `train` reads them: -o RUN, -oRUN, --out RUN, --out=RUN.
        start = "--out=" if argument.startswith("--out=") else "-o" if argument.startswith("-o") else ""
        value = following if argument in ("-o", "--out") else argument.removeprefix(start) if start else ""
        if value:
            return Path(value).absolute()
    raise ConfigError("launch: the run's folder is missing; name it with -o after train DATASET")
