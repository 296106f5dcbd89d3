"""Groups of commands: how they are listed, and what they answer to options that users know from other tools."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from voxelocity_observe.cli.command import missing_distribution

# The base of all errors in a command line's form, of the click that this typer brings along.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_TRAINS = ("train", "plan", "recipe")
_RUNS = (*_TRAINS, "tune", "predict")
_STEPS = "--set {fit}.steps=4000 (trainings count optimizer steps), or --time-budget 10m"
# The commands that it is for, what to write, and the options of other tools that mean it. Recipes that have their own
# settings have keys of their own; a text that names another key is not for them.
_INSTEAD: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("train", "plan"), "--epochs 100, or --time-budget 10m", ("num-epochs", "max-epochs", "epoch", "n-epochs")),
    (("recipe",), _STEPS, ("epochs", "num-epochs", "max-epochs", "epoch", "n-epochs")),
    (_TRAINS, _STEPS, ("iterations", "max-steps", "steps", "num-steps", "iters", "max-iterations")),
    (_TRAINS, "--set {data}.batch_size=4", ("batch-size", "batch", "bs")),
    (_TRAINS, "--set {optimizer}.learning_rate=0.01", ("lr", "learning-rate", "initial-lr")),
    (
        _TRAINS,
        "--set '{patch}.shape_voxel=[96,96,96]'",
        ("patch-size", "patch", "roi-size", "roi", "crop-size", "imgsz"),
    ),
    (_TRAINS, "--set '{spacing}.spacing_mm=[1,1,1]'", ("spacing", "pixdim", "voxel-size", "target-spacing")),
    (_TRAINS, "--set precision.compute=float16, or bfloat16 or float32", ("amp", "fp16", "mixed-precision", "bf16")),
    (
        _TRAINS,
        "--set {optimizer}.clip_norm=1",
        ("clip-grad", "grad-clip", "clip-norm", "max-grad-norm", "gradient-clip-val"),
    ),
    (
        ("train", "plan"),
        "--set train.checkpoint_every_epochs=1",
        ("save-every", "save-interval", "checkpoint-every", "save-freq"),
    ),
    (_TRAINS, "--set {feed}.num_threads=4", ("workers", "num-workers", "threads", "num-threads", "num-processes")),
    (_TRAINS, "--set {loss}.name=dice_focal", ("loss", "loss-function", "criterion")),
    (_TRAINS, "--set {network}.name=segresnet", ("model", "network", "arch", "architecture", "net")),
    (
        _TRAINS,
        "--set {validations}.validate_every_steps=500",
        ("val-interval", "val-every", "eval-every", "validate-every"),
    ),
    (("train",), "--from RUN", ("checkpoint", "ckpt", "weights", "pretrained", "finetune", "pretrained-weights")),
    (_TRAINS, "`voxelocity launch -n 2 {command} ...`", ("gpus", "num-gpus", "nproc-per-node", "devices")),
    (_RUNS, "--device cuda, or cpu", ("gpu", "use-gpu", "cuda", "gpu-id", "gpu-ids", "accelerator", "use-cuda")),
    (
        ("train", "recipe", "tune", "predict"),
        "-o FOLDER",
        ("output", "output-dir", "output-folder", "out-dir", "save-dir", "outdir", "results"),
    ),
    (("predict",), "the folder of the run first: voxelocity predict RUN INPUT -o OUT", ("model", "checkpoint", "ckpt")),
)
_PLAN_KEYS = {
    "fit": "train", "data": "data", "optimizer": "optimizer", "feed": "data.feed", "patch": "data.patch",
    "spacing": "data.prepare", "loss": "loss", "network": "network", "validations": "train",
}  # fmt: skip
_RECIPE_KEYS = {"fit": "fit", "data": "fit", "optimizer": "fit.optimizer"}
_OWN_RECIPES = {"pathology", "tractography"}
# Characters of a command's help in the list of all: more than any has.
_WHOLE = 1000
_ACTIONS = dict.fromkeys(("infer", "generate", "test"), "predict")


class ListingGroup(TyperGroup):
    """Commands whose list has their whole first sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands under their panels, each with its whole first sentence."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in found if command is not None and not command.hidden]
        for panel in dict.fromkeys(getattr(command, "rich_help_panel", None) for _, command in shown):
            of_panel = [pair for pair in shown if getattr(pair[1], "rich_help_panel", None) == panel]
            with formatter.section(panel if isinstance(panel, str) else "Commands"):
                formatter.write_dl([(name, command.get_short_help_str(_WHOLE)) for name, command in of_panel])


class HintingGroup(ListingGroup):
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
    name = option.strip("-").replace("_", "-").lower()
    text = next((text for commands, text, names in _INSTEAD if command in commands and name in names), "")
    keys = _RECIPE_KEYS if command == "recipe" and _OWN_RECIPES & set(arguments) else _PLAN_KEYS
    wanted = {field for _, field, _, _ in string.Formatter().parse(text) if field} - {"command"}
    return text.format(command=command, **keys) if wanted <= keys.keys() else ""
