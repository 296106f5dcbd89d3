"""`voxelocity recipe`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from voxelocity.cli import options, phases
from voxelocity.core.requests.plan import DeviceChoice, read_device
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import InputError, InterruptedRunError
from voxelocity_observe.core.first_use import value_of
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest
from voxelocity_observe.sinks import TRACKERS

if TYPE_CHECKING:
    from voxelocity_lab.recipes.call import Call

Name = Literal["brain", "pathology", "spleen", "tractography"]
Action = Literal["train", "predict", "both", "benchmark", "inference"]
_EXAMPLES = {
    "brain": "regions of brain tumors in four MR images",
    "pathology": "tumor on slides, by their tiles",
    "spleen": "the spleen in CT",
    "tractography": "new streamlines of each bundle, by diffusion",
}
_ACTIONS = {
    "train": "a model",
    "predict": "with the trained model; `inference` is the same",
    "both": "one after the other",
    "benchmark": "compare with the standard approach",
}
_SEGMENT = ("brain", "spleen")
"""Those that segment: a Dice may end their trainings, and their benchmark is a race of trainings."""
_TRAINS = ("train", "both")
_ACTIONS_OF = {
    "time_budget_s": (*_TRAINS, "benchmark"),
    "target_dice": (*_TRAINS, "benchmark"),
    "seeds": ("benchmark",),
    "resume": _TRAINS,
    "log": _TRAINS,
}
"""The actions that follow an option, where not all do; of others than `_SEGMENT`, no benchmark does."""
_SAME = {"inference": "predict"}
"""Actions by the names of other programs."""


@dataclass(frozen=True, kw_only=True)
class _RecipeRequest(UserRequest):
    """What every recipe takes, whatever it does."""

    out: Annotated[Path | None, Option(flags=("-o", "--out"))] = None
    """Folder of the run."""
    time_budget_s: Annotated[float, Option(flags=("--time-budget",), read=parse_duration_s, shown="")] = 0.0
    """Train until then: 90s, 15m, 1h."""
    seed: Annotated[int, Option(least=0)] = 0
    """Seed of everything random."""
    device: Annotated[DeviceChoice, Option(read=read_device)] = "auto"
    """cpu, cuda or auto."""
    target_dice: Annotated[float, Option(flags=("--target",), least=0)] = 0.0
    """brain, spleen: train to this mean Dice of the held-out cases."""
    seeds: Annotated[int, Option(least=1)] = 3
    """brain, spleen: rounds of benchmark."""
    resume: Annotated[bool, Option()] = False
    """Continue an interrupted run."""
    overwrite: Annotated[bool, Option()] = False
    """Replace the run in the folder."""
    log: Annotated[tuple[str, ...], Option()] = ()
    """Trackers."""

    def _check(self) -> None:
        self.check_choice("device", get_args(DeviceChoice))
        if not 0.0 <= self.target_dice < 1.0:
            raise self.refusal("not a Dice to train to; use a number above 0 and below 1", "target_dice")


@options_of(_RecipeRequest, texts={"log": f"Also log to {', '.join(TRACKERS)}."})
def recipe(
    asked: Asked[_RecipeRequest],
    name: Annotated[
        Name | None, typer.Argument(help=f"Which example: {', '.join(get_args(Name))}.", show_default=False)
    ] = None,
    action: Annotated[
        Action | None,
        typer.Argument(
            help="train, predict with the trained model, both, or benchmark, to compare.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Argument(help="The data set; see the page of the recipe.", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file with settings of the recipe.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="One setting of the recipe: --set a.b=c.")] = None,
) -> None:
    """Run a complete example, from data to results, with one command.

    Without arguments, a terminal asks for them.
    """
    overrides, request = options.read_overrides(config, sets), asked.request()
    example, work, data, out = _complete(name, action, data, request.out)
    work = _SAME.get(work, work)
    _refuse_unused(request, example, work)
    from voxelocity.parallel import read_place

    call = _make_call(request, example, data=data, out=out, overrides=overrides)
    # Others are not imported.
    train, predict, benchmark = (
        value_of(f"voxelocity_lab.recipes.{example}.recipe", part) for part in ("train", "predict", "benchmark")
    )
    phases.start_up_is_over()
    if work == "benchmark":
        with interrupt.is_raised():
            benchmark(call)
        return
    if work != "predict":
        train(call)
    if work != "train" and read_place().rank == 0:
        _predict(predict, call, example)


def _refuse_unused(request: _RecipeRequest, example: str, work: str) -> None:
    """Returns if the action of this recipe follows each option that was given; a ConfigError names one that is not."""
    if example not in _SEGMENT and (given := [key for key in ("target_dice", "seeds") if request.is_given(key)]):
        raise request.refusal(f"only for {' and '.join(_SEGMENT)}; leave it out", *given)
    for name, actions in _ACTIONS_OF.items():
        followed = actions if example in _SEGMENT else [action for action in actions if action in _TRAINS]
        if request.is_given(name) and work not in followed:
            raise request.refusal(f"only for {', '.join(followed)}; leave it out", name)


def _make_call(request: _RecipeRequest, example: str, *, data: Path, out: Path, overrides: Mapping[str, Any]) -> Call:
    from voxelocity.parallel import read_place
    from voxelocity.planning.machine import survey
    from voxelocity_lab.recipes.call import Call
    from voxelocity_observe.core.clock import process_age_s
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.host import default_cache_folder
    from voxelocity_observe.sinks import choose_sinks

    console = PlainConsole(quiet=read_place().rank > 0)
    # What follows may take minutes before the first step.
    console.print(f"{example}: reading {data}", highlight=False, soft_wrap=True)
    machine = survey(request.device, cache_folder=default_cache_folder())
    return Call(
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
        target_dice=request.target_dice,
        num_seeds=request.seeds,
    )


def _predict(predict: Callable[[Call], object], call: Call, example: str) -> None:
    try:
        with interrupt.is_raised():
            predict(call)
    except KeyboardInterrupt:
        again = shlex.join(["voxelocity", "recipe", example, "predict", str(call.data), "-o", str(call.out)])
        raise InterruptedRunError(
            f"recipe: stopped by Ctrl-C while predicting; what was trained stays in {call.out}; `{again}` continues",
            signal_number=signal.SIGINT,
        ) from None


def _complete(name: str | None, action: str | None, data: Path | None, out: Path | None) -> tuple[str, str, Path, Path]:
    """What was given, and what is missing as the user answers in a terminal.

    Raises:
        InputError: something is missing, and there is no terminal to ask in.
    """
    if name is not None and action is not None and data is not None and out is not None:
        return name, action, data, out
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if name is None:
            typer.echo("voxelocity recipe NAME ACTION DATA -o OUT\n\nNAME:")
            _list(_EXAMPLES)
            typer.echo("ACTION:")
            _list(_ACTIONS)
            raise typer.Exit(2)
        given = {"an action": action, "a data set": data, "the folder of the run, -o": out}
        missing = ", ".join(what for what, value in given.items() if value is None)
        raise InputError(
            f"recipe: missing: {missing}; write voxelocity recipe {name} {action or '|'.join(_ACTIONS)} "
            f"{data or 'DATA'} -o {out or 'OUT'}"
        )
    name = name or _choose("Example", _EXAMPLES)
    action = action or _choose("Action", _ACTIONS)
    data = data or Path(typer.prompt("Data set"))
    return name, action, data, out or Path(typer.prompt("Folder of the run", default=f"{name}_run"))


def _choose(title: str, choices: Mapping[str, str]) -> str:
    _list(choices)
    while True:
        answer = str(typer.prompt(title)).strip()
        if answer in (*choices, *_SAME):
            return answer
        typer.echo(f"{answer!r} is not one of {', '.join(choices)}")


def _list(choices: Mapping[str, str]) -> None:
    for name, text in choices.items():
        typer.echo(f"  {name:14s}{text}")
