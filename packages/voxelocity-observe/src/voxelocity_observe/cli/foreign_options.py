"""Options that users know from other tools: what to write in their place here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from voxelocity_observe.cli.command import missing_distribution

# The base of all errors in a command line's form, of the click that this typer brings along.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# With the keys of the recipes that have their own settings, where they differ.
_STEPS = "--set {fit}.steps=4000 (trainings count optimizer steps), or --time-budget 10m"
_INSTEAD = {
    **dict.fromkeys(("epochs", "num-epochs", "max-epochs", "epoch", "iterations", "max-steps", "steps"), _STEPS),
    **dict.fromkeys(("batch-size", "batch", "bs"), "--set {data}.batch_size=4"),
    **dict.fromkeys(("lr", "learning-rate"), "--set {optimizer}.learning_rate=0.01"),
    **dict.fromkeys(("amp", "fp16", "mixed-precision"), "--set precision.compute=float16, or bfloat16 or float32"),
    **dict.fromkeys(("workers", "num-workers", "threads", "num-threads"), "--set {feed}.num_threads=4"),
    **dict.fromkeys(("gpus", "num-gpus", "nproc-per-node", "devices"), "`voxelocity launch -n 2 {command} ...`"),
}
_PLAN_KEYS = {"fit": "train", "data": "data", "optimizer": "optimizer", "feed": "data.feed"}
_RECIPE_KEYS = {"fit": "fit", "data": "fit", "optimizer": "fit.optimizer"}
_OWN_RECIPES = {"pathology", "tractography"}
_ACTIONS = dict.fromkeys(("inference", "infer", "generate", "test"), "predict")
_TRAINS = {"train", "plan", "recipe"}


class HintingGroup(TyperGroup):
    """Commands that answer an option of another tool with what does the same here."""

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:  # type: ignore[override]
        """The command that the first word names.

        Raises:
            UsageError: of click, with the distribution that brings it if another one does.
        """
        try:
            return super().resolve_command(ctx, args)
        except _UsageError as error:
            if wanted := missing_distribution(args[0]):
                error.message = f"{error.message} `pip install '{wanted}'` brings it."  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """The command's result.

        Raises:
            UsageError: of click, with a hint where the option is known.
        """
        arguments = tuple(ctx.args)
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            command = ctx.invoked_subcommand or ""
            hint = instead_of(getattr(error, "option_name", ""), command, arguments)
            if command == "recipe" and (action := next((word for word in arguments[1:2] if word in _ACTIONS), "")):
                hint = f"{_ACTIONS[action]} in place of {action}"
            if hint:
                error.message = f"{error.message}. Write {hint}"  # type: ignore[attr-defined]
                # A name that looks alike would be the wrong advice.
                error.possibilities = None  # type: ignore[attr-defined]
            raise


def instead_of(option: str, command: str, arguments: Sequence[str] = ()) -> str:
    """What to write in place of an option of another tool; "" if nothing is known.

    Args:
        option: as it was written, "--epochs".
        command: the command that it was written for.
        arguments: those of the command.
    """
    text = _INSTEAD.get(option.strip("-").replace("_", "-").lower(), "") if command in _TRAINS else ""
    keys = _RECIPE_KEYS if command == "recipe" and _OWN_RECIPES & set(arguments) else _PLAN_KEYS
    return "" if "{feed}" in text and "feed" not in keys else text.format(command=command, **keys)
