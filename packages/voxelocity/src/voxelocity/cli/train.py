"""`voxelocity train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import options
from voxelocity_observe.cli.command import is_given
from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    from voxelocity.training import FoldsResult
    from voxelocity.training.entry import RunResult
    from voxelocity_observe.core.console import PlainConsole

_Dataset = Annotated[
    Path | None,
    typer.Argument(
        help="An MSD or nnU-Net folder (with dataset.json), one such .json, or a .csv; "
        "with --resume and without -o, the folder of the run."
    ),
]
_Out = Annotated[Path | None, typer.Option("-o", "--out", help="Folder of the run.")]
_Folds = Annotated[
    str, typer.Option("--folds", help="Train several folds into OUT/fold_K, one after the other: 'all', or as in 0,2.")
]
_StartFrom = Annotated[
    Path | None,
    typer.Option("--from", help="Fine-tune: start from the weights of this finished run, with its network."),
]
_Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue a run with its own plan: --resume RUN, or with DATASET and --out as it began."
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]
_FullValidation = Annotated[
    bool,
    typer.Option(
        "--full-validation",
        help="Never shorten the final validation to meet a time budget; with --resume, also for a finished run.",
    ),
]
_SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out cases that cannot be used, and report which and why.")
]
_Log = Annotated[
    list[str] | None, typer.Option("--log", help="Also log the run to tensorboard, wandb, mlflow or openmetrics.")
]


def train(
    context: typer.Context,
    dataset: _Dataset = None,
    out: _Out = None,
    fold: options.FoldText = "0",
    folds: _Folds = "",
    start_from: _StartFrom = None,
    time_budget: options.Budget = "",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    no_tuned: options.NoTuned = False,
    resume: _Resume = False,
    overwrite: _Overwrite = False,
    full_validation: _FullValidation = False,
    skip_broken: _SkipBroken = False,
    log: _Log = None,
) -> None:
    """Train a network on DATASET: plan, cache, train, validate, report."""
    if folds and is_given(context, "fold"):
        raise ConfigError(f"train: --fold {fold} trains one fold and --folds {folds} several; give one of them")
    if folds and resume and overwrite:
        raise ConfigError("train: --resume keeps folds that have begun, --overwrite replaces them; give one of them")
    dataset, out = _places(dataset, out, resume=resume and not folds)
    overrides = options.read_overrides(config, sets, no_tuned=no_tuned)
    chosen_fold, chosen_device = options.read_fold(fold), options.read_device(device)
    chosen_folds = options.read_folds(folds) if folds else ()
    from voxelocity.core.config import AUTO
    from voxelocity.data.source import open_cases
    from voxelocity_observe.sinks import choose_sinks

    sinks = choose_sinks(log or [])
    budget_s = options.read_budget_s(time_budget) or AUTO
    options.check_is_no_run(dataset)
    cases = open_cases(dataset)
    from voxelocity.parallel import read_place
    from voxelocity.training import train as run_training
    from voxelocity.training import train_folds
    from voxelocity_observe.core.clock import process_age_s
    from voxelocity_observe.core.console import PlainConsole

    # Of several ranks, one prints.
    console = PlainConsole(quiet=read_place().rank > 0)
    common: dict[str, Any] = {
        "time_budget_s": budget_s, "seed": seed if is_given(context, "seed") else AUTO,
        "device": chosen_device, "overrides": overrides, "overwrite": overwrite, "full_validation": full_validation,
        "skip_broken": skip_broken, "start_from": start_from, "console": console, "spent_s": process_age_s(),
    }  # fmt: skip
    if folds:
        result = train_folds(cases, out, folds=chosen_folds, make_sinks=lambda: choose_sinks(log or []), **common)
        _show_folds(result, console)
        return
    chosen = chosen_fold if is_given(context, "fold") else AUTO
    _show_run(run_training(cases, out, fold=chosen, resume=resume, sinks=sinks, **common), console)


def _show_run(result: RunResult, console: PlainConsole) -> None:
    from voxelocity.report import score_table
    from voxelocity_observe.core.quantities import count_text, duration_text

    console.print(score_table(result.scores))
    console.print(
        f"{result.headline}{'; it ended' if result.unlearned else ''} after {duration_text(result.seconds)} "
        f"({count_text(result.step, 'step')}); see {result.folder / 'report.html'}",
        highlight=False,
    )


def _show_folds(result: FoldsResult, console: PlainConsole) -> None:
    """The pooled scores, and which folds have none; status 1 if a fold failed."""
    from voxelocity.evaluation import evaluation_view
    from voxelocity.evaluation.page import PAGE

    if result.evaluation is not None:
        console.print(evaluation_view(result.evaluation), highlight=False)
        console.print(f"see {result.folder / PAGE}", highlight=False, soft_wrap=True)
    for fold, reason in result.failed.items():
        console.print(f"fold {fold} failed: {reason}", style="red", highlight=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _places(dataset: Path | None, out: Path | None, *, resume: bool) -> tuple[Path, Path]:
    """The data set and the run's folder; a resumed run knows its data set.

    Raises:
        ConfigError: one of them is missing.
    """
    if resume and (dataset is None) != (out is None):
        from voxelocity.training.resume import SavedRun
        from voxelocity.training.run_folder import RunFolder

        folder = RunFolder(out or dataset or Path())
        folder.check_path()
        if folder.holds_run:
            return SavedRun.read(folder.record).dataset_path(where=str(folder.record)), folder.path
        if out is None:
            raise ConfigError(f"train: {dataset} holds no run to resume; name the folder of one, or give it with -o")
    if dataset is None:
        raise ConfigError("train: DATASET is missing; write voxelocity train DATASET -o RUN, or train --resume RUN")
    if out is None:
        raise ConfigError("train: the run's folder is missing; name it with -o")
    return dataset, out
