"""Several folds of one data set, one run after the other, and their final validations pooled.

Each fold is a run of its own in OUT/fold_K, as `train` with that fold makes it, so folds may also be trained by
separate jobs. What they share is one plan, so that their networks can be averaged window by window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from rich.console import Console

from voxelocity.core.cases import Cases
from voxelocity.core.requests.train import FoldsOptions, TrainRequest
from voxelocity.infer.evaluation import Evaluation, pool_runs, write_evaluation
from voxelocity.parallel import Place, join_world, launcher_job, one_group, read_place
from voxelocity.planning import SharedKeys
from voxelocity.training.entry import run_training
from voxelocity.training.open_session import RunContext
from voxelocity.training.resume import SavedRun, check_data, check_options, other_path
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.session import StopRequest
from voxelocity.training.source_model import source_of_fold
from voxelocity.training.start_choice import check_source
from voxelocity_observe.core.clock import system_clock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import (
    ConfigError,
    DatasetError,
    InterruptedRunError,
    NonFiniteLossError,
    OutputError,
    VoxelocityError,
)
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.request import context_of, documents
from voxelocity_observe.sinks import Sink


@dataclass(frozen=True, kw_only=True)
class FoldsResult:
    """What became of several folds.

    Attributes:
        folder: of all of them; it holds `evaluation.html`, `.json` and `.csv` if any fold is finished.
        runs: the folders of the finished folds.
        failed: why a fold has no result.
        evaluation: the final validations of the finished folds, pooled; None if there are none.
    """

    folder: Path
    runs: Mapping[int, Path]
    failed: Mapping[int, str]
    evaluation: Evaluation | None


class FoldsCallOptions(FoldsOptions, total=False):
    """The keywords of `train_folds`: fields of `TrainRequest`, of `RunContext`, and one of its own."""

    console: Console | None
    spent_s: float
    plan_view: Literal["short", "full", "none"]
    make_sinks: Callable[[], Sequence[Sink]]


@documents(TrainRequest, RunContext, leave_out=("out", "fold", "resume", "clock", "stop", "sinks", "shared"))
def train_folds(cases: Cases, out: Path | str, **options: Unpack[FoldsCallOptions]) -> FoldsResult:
    """Trains the folds into `out/fold_K`, one after the other.

    A fold that is finished is kept, an unfinished one continues. A fold that fails does not stop the others, unless
    several ranks train and it was not its loss that broke. All folds have the plan of the first one, except for what
    depends on their number of training cases.

    Args:
        cases: what `voxelocity.open` returned.
        out: the folder for all folds.
        options: the fields of `TrainRequest`, of which those on a run count for each fold; `time_budget` as a text such
            as "5m"; `console` and `spent_s` as in `RunContext`; and `make_sinks`, which is called for each fold and
            returns sinks as in `train`.

    Raises:
        InputError: a fold holds no case, an argument is wrong, or a folder holds a run of other data or options.
        InterruptedRunError: it was asked to stop; what was done is saved.
    """
    keywords: dict[str, Any] = {"folds": (), **options}
    make_sinks = keywords.pop("make_sinks", None)
    context, asked = context_of(RunContext, keywords)
    request = TrainRequest.of_call(asked, call="vx.train_folds", out=out)
    with request.errors_as_written(without=" with resume=True"):
        return run_folds(cases, request, context, make_sinks=make_sinks or (lambda: ()))


def run_folds(
    cases: Cases,
    request: TrainRequest,
    context: RunContext,
    *,
    make_sinks: Callable[[], Sequence[Sink]] = lambda: (),
) -> FoldsResult:
    """What `train_folds` does, for a request."""
    place, out, called_s = read_place(), request.out, system_clock()
    console = context.console or PlainConsole(quiet=place.rank > 0)
    if RunFolder(out).holds_run:
        raise OutputError(f"train: {out} holds a run, but folds need a separate folder; choose another with -o")
    chosen = tuple(dict.fromkeys(request.folds or ())) or _folds_of(cases)
    for fold in chosen:
        cases.split(fold)
    folders = {fold: RunFolder(out / f"fold_{fold}") for fold in chosen}
    begun = {fold for fold, folder in folders.items() if folder.holds_run}
    if request.overwrite:
        # A launcher that starts the command again has begun some folds itself.
        job = launcher_job()
        begun = {fold for fold in begun if place.num_restarts > 0 and folders[fold].is_of_job(job)}
    for fold in begun:
        _check_begun(cases, _of_fold(request, fold, is_begun=True))
    measured = _shared_keys(out, cases, except_folds=[*{*chosen} - begun] if request.overwrite else ())
    with one_group(place, uses_gpu=request.device != "cpu" and torch.cuda.is_available()):
        # Ranks may have waited for each other.
        spent_s = context.spent_s + system_clock() - called_s
        first = replace(context, console=console, spent_s=spent_s, shared=measured)
        failed = _train_each(cases, request, first, folders=folders, begun=begun, place=place, make_sinks=make_sinks)
    runs = {fold: folder.path for fold, folder in folders.items() if fold not in failed}
    is_repeated = any(len({*ref.folds} & {*runs}) > 1 for ref in cases.refs)
    evaluation = pool_runs(list(runs.values()), is_repeated=is_repeated) if runs else None
    if evaluation is not None and place.rank == 0:
        write_evaluation(evaluation, out)
    return FoldsResult(folder=out, runs=runs, failed=failed, evaluation=evaluation)


def _train_each(
    cases: Cases,
    request: TrainRequest,
    context: RunContext,
    *,
    folders: Mapping[int, RunFolder],
    begun: set[int],
    place: Place,
    make_sinks: Callable[[], Sequence[Sink]],
) -> dict[int, str]:
    """Trains the folds that are not finished; why each of the others has no result. Called by all ranks.

    Other processes may train some of them meanwhile, from the same command.
    """
    console, failed, open_folds = context.console, dict[int, str](), set[int]()
    assert console is not None, "the leader prints, others are quiet"
    for fold, folder in folders.items():
        is_replaced = request.overwrite and fold not in begun
        holds_run, is_finished = (False, False) if is_replaced else _state_of(folder, place)
        if holds_run and fold not in begun:
            _check_begun(cases, _of_fold(request, fold, is_begun=True))
            begun.add(fold)
        if fold in begun and is_finished and not request.full_validation:
            console.print(f"fold {fold} is finished: {folder.path}", highlight=False)
            continue
        console.print(f"fold {fold} of {', '.join(map(str, folders))}: {folder.path}", style="bold", highlight=False)
        stop = StopRequest()
        of_fold = replace(context, stop=stop, sinks=make_sinks())
        wanted = _of_fold(request, fold, is_begun=fold in begun)
        if reason := _train_fold(cases, wanted, of_fold, is_alone=place.is_alone):
            failed[fold] = reason
            console.print(f"fold {fold} failed: {reason}", style="red", highlight=False, soft_wrap=True)
            if not is_replaced and not is_finished:
                open_folds.add(fold)
        if stop.signal_number is not None and fold != [*folders][-1]:
            # It came when only the fold's report was left to write.
            raise InterruptedRunError(
                f"train: stopped after fold {fold}; the same command trains the other folds",
                signal_number=stop.signal_number,
            )
        # The others have the same plan.
        context = replace(
            context,
            spent_s=0.0,
            plan_view=context.plan_view if fold in begun else "none",
            shared=context.shared or _shared_keys(request.out, cases),
        )
    for fold in sorted(open_folds):
        if _state_of(folders[fold], place)[1]:
            console.print(f"fold {fold} was finished by another process: {folders[fold].path}", highlight=False)
            del failed[fold]
    return failed


def _state_of(folder: RunFolder, place: Place) -> tuple[bool, bool]:
    """Whether there is a run, and whether it is finished, as the leader sees it. Called by all ranks."""
    with join_world(place) as world:
        return world.run_on_leader(lambda: (folder.holds_run, folder.is_finished()))


def _of_fold(request: TrainRequest, fold: int, *, is_begun: bool) -> TrainRequest:
    """The request for one of the folds, which continues what was begun."""
    return replace(
        request,
        out=request.out / f"fold_{fold}",
        fold=fold,
        folds=None,
        resume=is_begun,
        overwrite=request.overwrite and not is_begun,
        start_from=tuple(source_of_fold(path, fold) for path in request.start_from),
    )


def _train_fold(cases: Cases, request: TrainRequest, context: RunContext, *, is_alone: bool) -> str:
    """Trains a fold; why it failed, or "".

    Raises:
        VoxelocityError: every fold would fail, or other ranks may be anywhere in the fold.
    """
    try:
        run_training(cases, request, context)
    # What is wrong with the command or with the data set is wrong for every fold.
    except (InterruptedRunError, ConfigError, DatasetError):
        raise
    except VoxelocityError as error:
        if not is_alone and not isinstance(error, NonFiniteLossError):
            raise
        return str(error)
    return ""


def _check_begun(cases: Cases, request: TrainRequest) -> None:
    """Refuses a fold that was begun with other data, options or weights.

    Raises:
        InputError: it was.
    """
    folder = RunFolder(request.out)
    saved = SavedRun.read(folder.record)
    check_data(folder, saved, cases)
    check_source(request.start_from, saved, out=folder.path)
    check_options(folder, saved, request)


def _shared_keys(out: Path, cases: Cases, *, except_folds: Sequence[int] = ()) -> SharedKeys | None:
    """What the folds in `out` that have begun share, except those that are replaced; None if none has."""
    replaced = {f"fold_{fold}" for fold in except_folds}
    for path in sorted(out.glob("fold_*")):
        folder = RunFolder(path)
        if folder.holds_run and path.name not in replaced:
            saved = SavedRun.read(folder.record)
            if not other_path(saved, cases):
                return SharedKeys.of_folds(saved.plan)
    return None


def _folds_of(cases: Cases) -> tuple[int, ...]:
    """The folds that hold labeled cases out.

    Raises:
        DatasetError: there are fewer than two.
    """
    found = tuple(sorted({fold for ref in cases.refs if ref.label is not None for fold in ref.folds}))
    if len(found) < 2:
        raise DatasetError(
            f"train: {cases.root} has {count_text(len(found), 'fold')} with labeled cases, and --folds all needs at "
            "least two; train without --folds, or declare folds (docs/data-sets.md)"
        )
    return found
