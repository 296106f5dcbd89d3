"""`voxelocity recipe`."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from voxelocity.cli import options, phases
from voxelocity.core.requests.plan import DeviceChoice, read_device
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import InterruptedRunError
from voxelocity_observe.core.first_use import value_of
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest
from voxelocity_observe.sinks import TRACKERS

Name = Literal["brain", "pathology", "spleen", "tractography"]
Action = Literal["train", "predict", "both", "benchmark"]


@dataclass(frozen=True, kw_only=True)
class _RecipeRequest(UserRequest):
    """What every recipe takes, whatever it does."""

    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Folder of the run."""
    time_budget_s: Annotated[float, Option(flags=("--time-budget",), read=parse_duration_s, shown="")] = 0.0
    """Train until then: 90s, 15m, 1h."""
    seed: Annotated[int, Option(least=0)] = 0
    """Seed of everything random."""
    device: Annotated[DeviceChoice, Option(read=read_device)] = "auto"
    """cpu, cuda or auto."""
    resume: Annotated[bool, Option()] = False
    """Continue an interrupted run."""
    overwrite: Annotated[bool, Option()] = False
    """Replace the run in the folder."""
    log: Annotated[tuple[str, ...], Option()] = ()
    """Trackers."""

    def _check(self) -> None:
        self.check_choice("device", get_args(DeviceChoice))


@options_of(_RecipeRequest, texts={"log": f"Also log to {', '.join(TRACKERS)}."})
def recipe(
    asked: Asked[_RecipeRequest],
    name: Annotated[Name, typer.Argument(help=f"Which example: {', '.join(get_args(Name))}.")],
    action: Annotated[
        Action, typer.Argument(help="train, predict with what was trained, both, or benchmark, to compare.")
    ],
    data: Annotated[Path, typer.Argument(help="The data set; each recipe's page says what it takes.")],
    config: Annotated[Path | None, typer.Option("--config", help="YAML with settings of the recipe.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="One setting of the recipe: --set a.b=c.")] = None,
) -> None:
    """Run a complete example: a task from data to results, by one command."""
    overrides, request = options.read_overrides(config, sets), asked.request()
    out = request.out
    from voxelocity.parallel import read_place
    from voxelocity.planning.machine import survey
    from voxelocity_lab.recipes.call import Call
    from voxelocity_observe.core.clock import process_age_s
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.host import default_cache_folder
    from voxelocity_observe.sinks import choose_sinks

    console = PlainConsole(quiet=read_place().rank > 0)
    # What follows may take minutes before the first step.
    console.print(f"{name}: reading {data}", highlight=False, soft_wrap=True)
    machine = survey(request.device, cache_folder=default_cache_folder())
    call = Call(
        data=data,
        out=out,
        device=machine.torch_device,
        fast_bfloat16=machine.fast_bfloat16,
        console=console,
        seed=request.seed,
        time_budget_s=request.time_budget_s,
        overrides=overrides,
        resume=request.resume,
        overwrite=request.overwrite,
        sinks=choose_sinks(request.log),
        spent_s=process_age_s(),
    )
    # Others are not imported.
    train, predict, benchmark = (
        value_of(f"voxelocity_lab.recipes.{name}.recipe", part) for part in ("train", "predict", "benchmark")
    )
    phases.start_up_is_over()
    if action == "benchmark":
        with interrupt.is_raised():
            benchmark(call)
        return
    if action != "predict":
        train(call)
    if action != "train" and read_place().rank == 0:
        try:
            with interrupt.is_raised():
                predict(call)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"recipe: stopped by Ctrl-C while predicting; what was trained stays in {out}, and "
                f"`{shlex.join(['voxelocity', 'recipe', name, 'predict', str(data), '-o', str(out)])}` continues",
                signal_number=signal.SIGINT,
            ) from None
