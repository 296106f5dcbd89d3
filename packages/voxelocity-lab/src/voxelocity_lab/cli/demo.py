"""`voxelocity demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity_observe.cli import interrupt
from voxelocity_observe.core.errors import InputError

if TYPE_CHECKING:
    from voxelocity_observe.core.console import PlainConsole

_SECONDS = 20.0


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for phantoms, runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the phantoms and of the first training.")] = 0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=5.0, help="Seconds of each script; use more on slow machines.")
    ] = _SECONDS,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="Run a benchmark instead of the demo: trainings per side, each with its own seed."
        ),
    ] = None,
) -> None:
    """See it work in two minutes: diagnose a plain MONAI script, change one line, then `train`."""
    from voxelocity_observe.core.console import PlainConsole

    if seeds is not None and seconds != _SECONDS:
        raise InputError("demo: --seconds is for the demo of two minutes, --seeds for the race; leave one of them out")
    console = PlainConsole()
    with interrupt.is_raised():
        if seeds is None:
            from voxelocity_lab.recipes.demo.records import StorySettings
            from voxelocity_lab.recipes.demo.story import run_story

            console.print(f"{run_story(out, StorySettings(seed=seed, side_s=seconds), console=console).verdict}")
        else:
            _race(out, seed, seeds, console)
    console.print(f"see {out / 'demo.html'}", highlight=False)


def _race(out: Path, seed: int, num_seeds: int, console: PlainConsole) -> None:
    from voxelocity.report import factor_table
    from voxelocity_lab.recipes.demo.race import run_demo
    from voxelocity_observe.document import TableView

    outcome = run_demo(out, seed=seed, num_seeds=num_seeds, console=console)
    console.print(TableView(factor_table(outcome.runs, target_dice=outcome.race.target_dice)))
    if num_seeds > 1:
        console.print(TableView(outcome.table))
