"""`voxelocity demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity_observe.cli import interrupt


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for phantoms, runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the phantoms and of the first training.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings per side, each with its own seed.")] = 1,
) -> None:
    """Make phantoms and train on them to the same Dice with MONAI's fast recipe, a plain script and Voxelocity."""
    from voxelocity.report import factor_table
    from voxelocity_lab.recipes.demo import run_demo
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.document import TableView

    console = PlainConsole()
    with interrupt.is_raised():
        outcome = run_demo(out, seed=seed, num_seeds=seeds, console=console)
    console.print(TableView(factor_table(outcome.runs, target_dice=outcome.race.target_dice)))
    if seeds > 1:
        console.print(TableView(outcome.table))
    console.print(f"see {out / 'demo.html'}", highlight=False)
