"""`voxelocity evaluate`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity.core.requests.evaluate import EvaluateRequest
from voxelocity_observe.cli.asking import Asked, options_of

if TYPE_CHECKING:
    from voxelocity.infer.evaluation import Evaluation
    from voxelocity_observe.core.progress_bar import WorkProgress


@options_of(EvaluateRequest)
def evaluate(
    asked: Asked[EvaluateRequest],
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="PREDICTIONS... TRUTH",
            help="Folders of predictions, such as one per fold, then the true labels (a folder or a data set). Or "
            "only finished runs, to pool their final validations.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for evaluation.html, .json and .csv.")],
) -> None:
    """Compare PREDICTIONS with TRUTH: Dice, surface distances and volumes of every class and case.

    Exits with 1 if a case could not be compared.
    """
    from voxelocity.infer.evaluation import evaluation_view, write_evaluation
    from voxelocity.infer.evaluation.page import PAGE
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.progress_bar import WorkProgress

    console = PlainConsole()
    with WorkProgress(console, "comparing") as progress:
        evaluation = _evaluate(asked, folders, progress)
    write_evaluation(evaluation, out)
    console.print(evaluation_view(evaluation), highlight=False)
    console.print(f"see {out / PAGE}", highlight=False, soft_wrap=True)
    if evaluation.refused:
        raise typer.Exit(1)


def _evaluate(asked: Asked[EvaluateRequest], folders: list[Path], progress: WorkProgress) -> Evaluation:
    """The runs pooled, or the predictions compared with the last folder.

    Raises:
        InputError: the folders are neither, or an option is for the other.
    """
    from voxelocity.infer.evaluation import pool_runs, score_predictions
    from voxelocity.report import folder_kind
    from voxelocity_observe.core.errors import InputError

    runs = [folder for folder in folders if folder_kind(folder) == "run"]
    if len(runs) == len(folders):
        if asked.written:
            given = " and ".join(asked.written.values())
            raise InputError(
                f"evaluate: {given} is for folders of predictions, but only runs were given, which already have "
                "scores; leave it out, or predict their cases and name the predictions and the truth"
            )
        return pool_runs(runs)
    if runs:
        raise InputError(
            f"evaluate: {runs[0]} is a run and {next(f for f in folders if f not in runs)} is none; name only runs, or "
            "only folders of predictions and the truth"
        )
    if len(folders) < 2:
        raise InputError(f"evaluate: only {folders[0]} was given; name the predictions, then the truth")
    request = asked.request(predictions=folders[:-1], truth=folders[-1])
    num_cases, num_done = 0, itertools.count(1)

    def start(num: int) -> None:
        nonlocal num_cases
        num_cases = num

    def end(_: object) -> None:
        number = next(num_done)
        share = number / num_cases
        progress.update(share, f"compared case {number} of {num_cases}{progress.left_text(share)}")

    return score_predictions(request, on_start=start, on_case=end)
