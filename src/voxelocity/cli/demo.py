"""`voxelocity demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxelocity.cli import interrupt


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for phantoms, runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of phantoms and training.")] = 0,
) -> None:
    """Make phantoms, train on them twice to the same Dice, plainly and with Voxelocity, and show the factor."""
    from voxelocity.core.console import PlainConsole
    from voxelocity.recipes.demo.compare import run_demo
    from voxelocity.report import factor_table

    console = PlainConsole()
    with interrupt.is_raised():
        result = run_demo(out, seed=seed, console=console)
    console.print(factor_table(result.runs, target_dice=result.target_dice))
    console.print(f"see {result.page}", highlight=False)
