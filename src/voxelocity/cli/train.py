"""`voxelocity train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import options


def train(
    context: typer.Context,
    dataset: options.Dataset,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the run.")],
    fold: options.FoldText = "0",
    time_budget: options.Budget = "",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its own plan.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", help="Follow the run elsewhere too: tensorboard, wandb, mlflow or openmetrics."),
    ] = None,
) -> None:
    """Train a network on DATASET: plan, cache, train, validate, report."""
    overrides = options.read_overrides(config, sets)
    chosen_fold, chosen_device = options.read_fold(fold), options.read_device(device)
    from voxelocity.core.config import AUTO
    from voxelocity.core.units import parse_duration_s
    from voxelocity.data.source import open_cases
    from voxelocity.observe.sinks import choose_sinks

    sinks = choose_sinks(log or [])
    budget_s = parse_duration_s(time_budget) if time_budget else AUTO
    cases = open_cases(dataset)
    from voxelocity.core.console import PlainConsole
    from voxelocity.observe import process_age_s
    from voxelocity.report import duration_text, score_table
    from voxelocity.report.quantities import dice_text
    from voxelocity.training import train as run_training

    console = PlainConsole()
    result = run_training(
        cases,
        out,
        fold=chosen_fold if options.is_given(context, "fold") else AUTO,
        time_budget_s=budget_s,
        seed=seed if options.is_given(context, "seed") else AUTO,
        device=chosen_device,
        overrides=overrides,
        resume=resume,
        overwrite=overwrite,
        console=console,
        spent_s=process_age_s(),
        sinks=sinks,
    )
    console.print(score_table(result.scores))
    console.print(
        f"mean foreground Dice {dice_text(result.mean_dice)} after {duration_text(result.seconds)} "
        f"({result.step} steps); see {result.folder / 'report.html'}",
        highlight=False,
    )
