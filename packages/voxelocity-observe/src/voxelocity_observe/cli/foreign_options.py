"""Groups of commands: how they are listed, and what they answer to options that users know from other tools."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from voxelocity_observe.cli.command import missing_distribution
from voxelocity_observe.core.errors import did_you_mean

# The base of all errors in a command line's form, of the click that this typer brings along.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_TRAINS = ("train", "plan", "recipe", "tune")
_RUNS = (*_TRAINS, "predict")
_ALL = (*_RUNS, "evaluate", "diagnose", "bench", "demo", "monitor", "export", "report")
_STEPS = "--set {fit}.steps=4000 (lengths are in optimizer steps), or --time-budget 10m"
_IN_PLAN = "--set {window}.%s when you train: predict takes the windows of the run"
# The commands that it is for, what to write, and the options of other tools that mean it. Recipes that have their own
# settings have keys of their own; a text that names another key is not for them.
_INSTEAD: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("train", "plan"), "--epochs 100, or --time-budget 10m", "num-epochs max-epochs epoch n-epochs e"),
    (("recipe",), _STEPS, "epochs num-epochs max-epochs epoch n-epochs e"),
    (("tune",), "--time-budget 10m, for the whole tuning", "epochs num-epochs max-epochs epoch timeout"),
    (_TRAINS, _STEPS, "iterations max-steps steps num-steps iters max-iterations"),
    (_TRAINS, "--set {data}.batch_size=4", "batch-size batch bs b train-batch-size"),
    (_TRAINS, "--set {optimizer}.learning_rate=0.01", "lr learning-rate initial-lr lr0"),
    (_TRAINS, "--set '{patch}.shape_voxel=[96,96,96]'", "patch-size patch roi-size roi crop-size imgsz"),
    (_TRAINS, "--set '{spacing}.spacing_mm=[1,1,1]'", "spacing pixdim voxel-size target-spacing"),
    (_TRAINS, "--set precision.compute=float16, or bfloat16 or float32", "amp fp16 mixed-precision bf16 precision"),
    (
        _TRAINS,
        "--set {feed}.num_threads=4",
        "workers num-workers threads num-threads num-processes np num-proc j",
    ),
    (_TRAINS, "--set {optimizer}.clip_norm=1", "clip-grad grad-clip clip-norm max-grad-norm gradient-clip-val"),
    (
        ("train", "plan"),
        "--set train.checkpoint_every_epochs=1",
        "save-every save-interval checkpoint-every save-freq",
    ),
    (_TRAINS, "--set {loss}.name=dice_focal", "loss loss-function criterion"),
    (_TRAINS, "--set {network}.name=segresnet", "model network arch architecture net"),
    (
        _TRAINS,
        "--set {validations}.validate_every_steps=500",
        "val-interval val-every eval-every validate-every check-val-every-n-epoch",
    ),
    (("train",), "--from RUN", "checkpoint ckpt weights pretrained finetune pretrained-weights ckpt-path"),
    (("train",), "--resume RUN", "continue c continue-training"),
    (("train",), "--fold 0, or --folds all", "f fold-id"),
    (("train",), "--folds all, each with a fifth of the cases held out", "cv cross-validation num-folds k"),
    (
        ("train", "plan"),
        "`voxelocity plan DATASET` to see what is chosen; --set changes it",
        "tr trainer p plans configuration",
    ),
    (
        ("train", "plan", "tune"),
        "the data set without an option: voxelocity {command} DATASET",
        "data dataset data-dir datadir data-root d i input dataset-id dataset-name-or-id",
    ),
    (("train", "recipe"), "`voxelocity launch -n 2 {command} ...`", "gpus num-gpus nproc-per-node devices num-devices"),
    (("predict",), "--device all, for every GPU", "gpus num-gpus devices num-devices"),
    (_RUNS, "--device cuda, or cpu", "gpu use-gpu cuda gpu-id gpu-ids accelerator use-cuda gpus num-gpus devices"),
    (
        _ALL,
        "-o FOLDER",
        "output output-dir output-folder out-dir save-dir outdir results output-path project name default-root-dir",
    ),
    (("train", "recipe", "tune", "predict", "export"), "--overwrite", "force exist-ok replace clobber"),
    (
        ("predict",),
        "the folder of the run first: voxelocity predict RUN INPUT -o OUT",
        "model checkpoint ckpt chk m w weights run d dataset-id tr c p task ta model-folder dataset bundle config-file",
    ),
    (
        ("predict",),
        "the scans without an option: voxelocity predict RUN INPUT -o OUT",
        "i input inputs input-folder input-dir images source img image filenames",
    ),
    (
        ("predict",),
        "the folders of several runs, to average their logits: voxelocity predict RUN/fold_0 RUN/fold_1 INPUT -o OUT",
        "f fold folds",
    ),
    (("predict",), "--runtime auto, the fastest on this machine", "fast fastest f3 half fp16 compile trt"),
    (("predict",), "--probabilities", "save-probabilities save-prob save-softmax softmax"),
    (("predict",), "--previews", "preview visualize show save-img"),
    (("predict",), _IN_PLAN % "batch_size=4", "batch-size bs batch sw-batch-size b"),
    (("predict",), _IN_PLAN % "overlap=0.5", "overlap step-size tile-step-size"),
    (("predict",), _IN_PLAN % "mirror_axes=[]", "disable-tta no-tta tta mirror augment disable-mirroring"),
    (
        ("predict", "evaluate"),
        "taskset -c 0-3 before the command to use fewer cores; it uses all that it may",
        "num-workers workers npp nps np num-processes threads num-threads j nr-thr-resamp nr-thr-saving",
    ),
    (
        ("evaluate",),
        "folders without options: voxelocity evaluate PREDICTIONS TRUTH -o OUT",
        "pred preds prediction predictions gt truth labels label reference ref i input djfile pfile",
    ),
    (("diagnose",), "--seconds 60", "epochs steps iterations num-steps duration time max-steps timeout"),
    (("export",), "--to onnx", "format f include"),
)
_PLAN_KEYS = {
    "fit": "train", "data": "data", "optimizer": "optimizer", "feed": "data.feed", "patch": "data.patch",
    "spacing": "data.prepare", "loss": "loss", "network": "network", "validations": "train",
    "window": "window",
}  # fmt: skip
_RECIPE_KEYS = {"fit": "fit", "data": "fit", "optimizer": "fit.optimizer"}
_OWN_RECIPES = {"pathology", "tractography"}
# Characters of a command's help in the list of all: more than any has.
_WHOLE = 1000
_ACTIONS = dict.fromkeys(("infer", "generate", "test"), "predict")
# What to write for commands of other tools.
_COMMANDS = {
    "voxelocity predict RUN INPUT -o OUT": (
        "inference infer test segment totalsegmentator nnunet-predict nnunetv2-predict"
    ),
    "voxelocity train DATASET -o RUN": "fit finetune learn nnunet-train nnunetv2-train",
    "voxelocity train --resume RUN": "resume continue",
    "voxelocity train --resume RUN --full-validation": "validate val",
    "voxelocity plan DATASET": "nnunet-plan-and-preprocess nnunetv2-plan-and-preprocess preprocess config",
    "voxelocity evaluate PREDICTIONS TRUTH -o OUT": "score metrics nnunetv2-evaluate-folder",
    "voxelocity report RUN RUN": "compare diff",
    "voxelocity diagnose -- python train.py": "profile profiler run trace",
    "voxelocity doctor": "info env check status",
    "voxelocity export RUN --to onnx -o OUT": "convert",
    "voxelocity init FOLDER": "create new",
    "voxelocity monitor -- python train.py": "watch top",
}
# What takes a single folder, for users of tools that take several words.
_ONE_PLACE = {
    "train": "one data set: voxelocity train DATASET -o RUN",
    "plan": "one data set: voxelocity plan DATASET",
    "tune": "one data set or run: voxelocity tune DATASET",
}
_NOT_A_CHOICE = re.compile(r"'(.*)' is not one of (.*)")


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
            name = args[0].replace("_", "-").lower()
            if text := next((text for text, names in _COMMANDS.items() if name in names.split()), ""):
                error.message = f"No such command '{args[0]}'. Write {text}"  # type: ignore[attr-defined]
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
            option = _as_written(getattr(error, "option_name", ""), arguments)
            hint = instead_of(option, command, arguments)
            error.message = _in_words(error.message, option)  # type: ignore[attr-defined]
            if command == "recipe" and (action := next((word for word in arguments[1:2] if word in _ACTIONS), "")):
                hint = f"{_ACTIONS[action]} instead of {action}"
            if error.message.startswith("Got unexpected extra argument"):  # type: ignore[attr-defined]
                hint = _ONE_PLACE.get(command, "")
            if hint:
                error.message = f"{error.message.rstrip('.')}. Write {hint}"  # type: ignore[attr-defined]
                # A name that looks alike would be the wrong advice.
                error.possibilities = None  # type: ignore[attr-defined]
            raise


def _as_written(option: str, arguments: Sequence[str]) -> str:
    """Click takes "-bs" for "-b" and "-s", and names the first of them."""
    if len(option) != 2 or option[0] != "-":
        return option
    return next((word.partition("=")[0] for word in arguments if word.startswith(option)), option)


def _in_words(message: str, option: str) -> str:
    """A message of click with the option as it was written, and with the choice that was probably meant."""
    if option and message.startswith("No such option: "):
        return f"No such option: {option}"
    message = message.replace("Value error, ", "")
    if found := _NOT_A_CHOICE.search(message):
        return message.rstrip(".") + did_you_mean(found[1], [name.strip("' .") for name in found[2].split(",")])
    return message


def instead_of(option: str, command: str, arguments: Sequence[str] = ()) -> str:
    """What to write in place of an option of another tool; "" if nothing is known.

    Args:
        option: as it was written, "--epochs".
        command: the command that it was written for.
        arguments: those of the command.
    """
    name = option.strip("-").replace("_", "-").lower()
    found = (text for commands, text, names in _INSTEAD if command in commands and name in names.split())
    text = next(found, "") if name else ""
    keys = _RECIPE_KEYS if command == "recipe" and _OWN_RECIPES & set(arguments) else _PLAN_KEYS
    wanted = {field for _, field, _, _ in string.Formatter().parse(text) if field} - {"command"}
    return text.format(command=command, **keys) if wanted <= keys.keys() else ""
