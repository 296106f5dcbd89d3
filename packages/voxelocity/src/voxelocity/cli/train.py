"""`voxelocity train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from voxelocity.cli import options
from voxelocity.core.requests.train import TrainRequest
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.sinks import TRACKERS

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


@options_of(TrainRequest, optional=("out",), texts={"log": f"Also log the run to {', '.join(TRACKERS)}."})
def train(
    asked: Asked[TrainRequest],
    dataset: _Dataset = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    no_tuned: options.NoTuned = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every choice of the plan and why.")] = False,
) -> None:
    """Train a network on DATASET: plan, cache, train, validate, report."""
    overrides = options.read_overrides(config, sets, no_tuned=no_tuned)
    # Without folders, so that what contradicts itself is refused before any is looked into.
    wanted = asked.request(out=asked.values.get("out", Path()), overrides=overrides)
    out: Path | None = asked.values.get("out")
    dataset, out = _folders(dataset, out, resume=wanted.resume and wanted.folds is None)
    request = asked.request(out=out, overrides=overrides)
    from voxelocity.data.source import open_cases

    options.check_is_no_run(dataset)
    cases = open_cases(dataset)
    from voxelocity.parallel import read_place
    from voxelocity.training import RunContext, run_folds, run_training
    from voxelocity_observe.core.clock import process_age_s
    from voxelocity_observe.core.console import PlainConsole

    # Of several ranks, one prints.
    console = PlainConsole(quiet=read_place().rank > 0)
    view: Literal["full", "short"] = "full" if verbose else "short"
    context = RunContext(console=console, spent_s=process_age_s(), plan_view=view)
    if request.folds is not None:
        _show_folds(run_folds(cases, request, context), console)
    else:
        _show_run(run_training(cases, request, context), console)


def _show_run(result: RunResult, console: PlainConsole) -> None:
    from voxelocity.report import score_table
    from voxelocity_observe.core.quantities import count_text, duration_text

    console.print(score_table(result.scores))
    console.print(
        f"{result.headline}{'; it ended' if result.unlearned else ''} after {duration_text(result.seconds)} "
        f"({count_text(result.step, 'step')}); see {result.folder / 'report.html'}; next: {result.next_command}",
        highlight=False,
        soft_wrap=True,
    )


def _show_folds(result: FoldsResult, console: PlainConsole) -> None:
    """The pooled scores, and which folds have none; status 1 if a fold failed."""
    from voxelocity.infer.evaluation import evaluation_view
    from voxelocity.infer.evaluation.page import PAGE

    if result.evaluation is not None:
        console.print(evaluation_view(result.evaluation), highlight=False)
        runs = shlex.join(map(str, result.runs.values()))
        following = "" if result.failed else f"; next: voxelocity predict {runs} SCANS -o OUT"
        console.print(f"see {result.folder / PAGE}{following}", highlight=False, soft_wrap=True)
    for fold, reason in result.failed.items():
        console.print(f"fold {fold} failed: {reason}", style="red", highlight=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _folders(dataset: Path | None, out: Path | None, *, resume: bool) -> tuple[Path, Path]:
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
            cure = folder.cure_without_run("name the folder of one, or give it with -o")
            raise ConfigError(f"train: {dataset} holds no run to resume; {cure}")
    if dataset is None:
        raise ConfigError("train: DATASET is missing; write voxelocity train DATASET -o RUN, or train --resume RUN")
    if out is None:
        raise ConfigError("train: the run's folder is missing; name it with -o RUN")
    return dataset, out
