"""Several folds of one data set, one run after the other, and their final validations pooled.

Each fold is a run of its own in OUT/fold_K, as `train` with that fold makes it, so folds may also be trained by
separate jobs. What they share is one plan, so that their networks can be averaged window by window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO, Auto
from voxelocity.evaluation import Evaluation, pool_runs, write_evaluation
from voxelocity.parallel import launcher_job, one_group, read_place
from voxelocity.planning import DeviceChoice, SharedKeys
from voxelocity.training.entry import train
from voxelocity.training.resume import SavedRun, check_data, check_options, other_path
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.session import StopRequest
from voxelocity.training.source_run import check_source_run, source_run_of_fold
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


def train_folds(
    cases: Cases,
    out: Path | str,
    *,
    folds: Sequence[int] = (),
    time_budget_s: float | Auto = AUTO,
    seed: int | Auto = AUTO,
    device: DeviceChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    full_validation: bool = False,
    skip_broken: bool = False,
    start_from: Path | str | None = None,
    console: Console | None = None,
    spent_s: float = 0.0,
    make_sinks: Callable[[], Sequence[Sink]] = lambda: (),
) -> FoldsResult:
    """Trains the folds into `out/fold_K`, one after the other. Other arguments are those of `train`, for each fold.

    A fold that is finished is kept, an unfinished one continues. A fold that fails does not stop the others, unless
    several ranks train and it was not its loss that broke. All folds have the plan of the first one, except for what
    depends on their number of training cases.

    Args:
        cases: what `voxelocity.open` returned.
        out: the folder for all folds.
        folds: their numbers; every fold of the data set if there are none.
        time_budget_s: seconds for each fold.
        seed: of each fold.
        device: where to train.
        overrides: keys of the plan to fix.
        overwrite: train every fold again.
        full_validation: as in `train`.
        skip_broken: as in `train`.
        start_from: as in `train`, for each fold.
        console: where progress is shown; the terminal if not given.
        spent_s: seconds the program ran before this call; they count toward the time budget of the first fold.
        make_sinks: called for each fold; returns sinks as in `train`.

    Raises:
        InputError: a fold holds no case, an argument is wrong, or a folder holds a run of other data or options.
        InterruptedRunError: it was asked to stop; what was done is saved.
    """
    place, out, called_s = read_place(), Path(out), system_clock()
    console = console or PlainConsole(quiet=place.rank > 0)
    if RunFolder(out).holds_run:
        raise OutputError(f"train: {out} holds a run, and folds need a folder of their own; choose another with -o")
    chosen = tuple(dict.fromkeys(folds)) or _folds_of(cases)
    for fold in chosen:
        cases.split(fold)
    folders = {fold: RunFolder(out / f"fold_{fold}") for fold in chosen}
    asked: dict[str, Any] = {"time_budget_s": time_budget_s, "seed": seed, "overrides": overrides}
    begun = {fold for fold, folder in folders.items() if folder.holds_run}
    if overwrite:
        # A launcher that starts the command again has begun some folds itself.
        job = launcher_job()
        begun = {fold for fold in begun if place.num_restarts > 0 and folders[fold].is_of_job(job)}
    for fold in begun:
        _check_begun(folders[fold], cases, fold=fold, start_from=source_run_of_fold(start_from, fold), **asked)
    shared = _shared_keys(out, cases, except_folds=[*{*chosen} - begun] if overwrite else ())
    failed: dict[int, str] = {}
    with one_group(place, uses_gpu=device != "cpu" and torch.cuda.is_available()):
        # Ranks may have waited for each other.
        spent_s += system_clock() - called_s
        for fold, folder in folders.items():
            if fold in begun and folder.is_finished() and not full_validation:
                console.print(f"fold {fold} is finished: {folder.path}", highlight=False)
                continue
            console.print(f"fold {fold} of {', '.join(map(str, chosen))}: {folder.path}", style="bold", highlight=False)
            stop = StopRequest()
            try:
                train(
                    cases, folder.path, fold=fold, device=device, resume=fold in begun,
                    overwrite=overwrite and fold not in begun, full_validation=full_validation, skip_broken=skip_broken,
                    start_from=source_run_of_fold(start_from, fold), shared=shared, console=console, spent_s=spent_s,
                    stop=stop, sinks=make_sinks(), **asked,
                )  # fmt: skip
            # What is wrong with the command or with the data set is wrong for every fold.
            except (InterruptedRunError, ConfigError, DatasetError):
                raise
            except VoxelocityError as error:
                if not place.is_alone and not isinstance(error, NonFiniteLossError):
                    # Other ranks may be anywhere in the fold.
                    raise
                failed[fold] = str(error)
                console.print(f"fold {fold} failed: {error}", style="red", highlight=False, soft_wrap=True)
            if stop.signal_number is not None and fold != chosen[-1]:
                # It came when only the fold's report was left to write.
                raise InterruptedRunError(
                    f"train: stopped after fold {fold}; the same command with --resume trains the other folds",
                    signal_number=stop.signal_number,
                )
            spent_s = 0.0
            shared = shared or _shared_keys(out, cases)
    runs = {fold: folder.path for fold, folder in folders.items() if fold not in failed}
    evaluation = pool_runs(list(runs.values())) if runs else None
    if evaluation is not None and place.rank == 0:
        write_evaluation(evaluation, out)
    return FoldsResult(folder=out, runs=runs, failed=failed, evaluation=evaluation)


def _check_begun(
    folder: RunFolder, cases: Cases, *, fold: int, start_from: Path | str | None, overrides: Any, **asked: Any
) -> None:
    """Refuses a fold that was begun with other data, options or weights, before any fold is trained.

    Raises:
        InputError: it was.
    """
    saved = SavedRun.read(folder.record)
    check_data(folder, saved, cases)
    check_source_run(None if start_from is None else Path(start_from), saved, out=folder.path)
    check_options(folder, saved, fold=fold, overrides=overrides or {}, **asked)


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
    found = tuple(sorted({ref.fold for ref in cases.refs if ref.label is not None and ref.fold is not None}))
    if len(found) < 2:
        raise DatasetError(
            f"train: {cases.root} has {len(found)} folds with labeled cases, and --folds all needs at least two; train "
            "without --folds, or declare folds (docs/data-sets.md)"
        )
    return found
