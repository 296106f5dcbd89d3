"""`voxelocity tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import options
from voxelocity_observe.cli.command import is_given
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import parse_bytes

if TYPE_CHECKING:
    from voxelocity.training.resume import SavedRun
    from voxelocity.tuning.tune import Tuning
    from voxelocity_observe.core.console import PlainConsole

_Dataset = Annotated[
    Path,
    typer.Argument(
        help="A data set, as for `train`; the folder of a run, whose plan is then improved; with --auto3dseg, "
        "a work folder of MONAI's Auto3DSeg, whose algorithms are tuned."
    ),
]
_Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="Folder of the trials and the page; tune-NAME if left out.")
]
_Goal = Annotated[
    str,
    typer.Option("--for", help="throughput: the shortest run; memory: the least memory; time-to-dice: by trainings."),
]
_Trials = Annotated[int, typer.Option("--trials", min=1, help="Trials of the search.")]
_Budget = Annotated[str, typer.Option("--time-budget", help="End by then: 90s, 5m, 1h.")]
_MemoryLimit = Annotated[
    str,
    typer.Option("--memory-limit", help="Of the GPU or, on a CPU, of main memory: what takes more fails. 8GB, 512MiB."),
]
_Only = Annotated[
    list[str] | None,
    typer.Option("--only", help="Search this key alone; repeat for more. learning-rate makes a range test."),
]
_Pairs = Annotated[
    int, typer.Option("--pairs", min=2, help="Pairs of trainings that judge what time-to-dice has found.")
]
_Train = Annotated[
    str,
    typer.Option("--train", help="Then train this long with the plan's own settings and with those found, for curves."),
]
_Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--no-keep", help="Whether later plans take what was found; a range test's rate by --keep only."
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin again, even if the folder holds trials.")]
_Specs = Annotated[
    Path | None, typer.Option("--specs", help="Of a work folder: Auto3DSeg's gpu_customization_specs as YAML.")
]
_Algos = Annotated[str, typer.Option("--algos", help="Of a work folder: these algorithms alone: segresnet,dints.")]
_Auto3dseg = Annotated[
    bool,
    typer.Option("--auto3dseg", help="Run the algorithms in the work folder: they are Python code that lies in it."),
]
_Undo = Annotated[bool, typer.Option("--undo", help="Of a work folder: put back what a tuning replaced.")]


def tune(
    context: typer.Context,
    dataset: _Dataset,
    out: _Out = None,
    goal: _Goal = "throughput",
    trials: _Trials = 20,
    time_budget: _Budget = "",
    memory_limit: _MemoryLimit = "",
    only: _Only = None,
    pairs: _Pairs = 3,
    train: _Train = "",
    fold: options.FoldText = "0",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    keep: _Keep = None,
    overwrite: _Overwrite = False,
    specs: _Specs = None,
    algos: _Algos = "",
    undo: _Undo = False,
    auto3dseg: _Auto3dseg = False,
) -> None:
    """Measure which settings suit this machine best for a run on DATASET; later plans take them."""
    if specs is not None or algos or undo or auto3dseg:
        _refuse_options_of_runs(context)
        _refuse_ranks()
        names = [name.strip() for name in algos.split(",") if name.strip()] or None
        if undo:
            _put_back(dataset, names)
        else:
            _customize(dataset, names, specs, out, time_budget, memory_limit, device, seed, overwrite=overwrite)
        return
    overrides = options.read_overrides(config, sets)
    chosen_fold, chosen_device = options.read_fold(fold), options.read_device(device)
    from voxelocity.data.source import open_cases
    from voxelocity.tuning.knobs import GOALS, Goal

    if goal not in GOALS:
        raise ConfigError(f"tune: --for {goal!r} is not known; choose {', '.join(GOALS)}")
    chosen_goal: Goal = goal
    budget_s, train_s = options.read_budget_s(time_budget), options.read_budget_s(train)
    limit_bytes = parse_bytes(memory_limit) if memory_limit else 0
    if any(dataset.glob("*/algo_object.json")) and not (dataset / "dataset.json").exists():
        raise ConfigError(
            f"tune: {dataset} is a work folder of Auto3DSeg, whose algorithms are Python code in it; if you trust that "
            "code, run it with --auto3dseg"
        )
    base, place = _base_of(dataset, overrides)
    if base is not None:
        chosen_fold = chosen_fold if is_given(context, "fold") else base.fold
        if out is None:
            from voxelocity_observe.core.links import check_links

            check_links(dataset, ("tune",), where="tune")
    from voxelocity.parallel import read_place
    from voxelocity.report import read_run
    from voxelocity.tuning.tune import tune as run_tuning
    from voxelocity_observe.core.console import PlainConsole

    console = PlainConsole(quiet=read_place().rank > 0)
    result = run_tuning(
        open_cases(place), out or (dataset / "tune" if base is not None else Path(f"tune-{dataset.resolve().stem}")),
        goal=chosen_goal, trials=trials, time_budget_s=budget_s, memory_limit_bytes=limit_bytes, only=only or (),
        num_pairs=pairs, train_s=train_s, fold=chosen_fold, seed=seed, device=chosen_device, overrides=overrides,
        base=None if base is None else base.plan, run=None if base is None else read_run(dataset), keep=keep,
        overwrite=overwrite, console=console,
    )  # fmt: skip
    _show(result, console)


def _show(result: Tuning, console: PlainConsole) -> None:
    """What changes, where it is kept, and the page."""
    from voxelocity.tuning.result import PAGE

    for key, value in result.values.items():
        console.print(f"{key}: {value}", highlight=False, soft_wrap=True)
    if not result.values:
        console.print("nothing changes", highlight=False)
    if result.kept is not None and result.values:
        console.print(f"later plans take this; kept in {result.kept}", highlight=False, soft_wrap=True)
    console.print(f"see {result.folder / PAGE}", highlight=False, soft_wrap=True)


def _refuse_options_of_runs(context: typer.Context) -> None:
    """Returns if no option was given that only a run has; a ConfigError names it."""
    for name in ("goal", "trials", "only", "pairs", "train", "fold", "config", "sets", "keep"):
        if is_given(context, name):
            flag = {"goal": "for", "sets": "set"}.get(name, name)
            raise ConfigError(
                f"tune: --{flag} means nothing for a work folder of Auto3DSeg; write it into --specs, or leave it out"
            )


def _refuse_ranks() -> None:
    """Returns if this process is alone; several would write the same files."""
    from voxelocity.parallel import read_place

    if not read_place().is_alone:
        raise ConfigError(
            "tune: one process tunes a work folder of Auto3DSeg; start it without launch, torchrun, srun or mpirun"
        )


def _customize(
    work: Path, algos: list[str] | None, specs: Path | None, out: Path | None, time_budget: str, memory_limit: str,
    device: str, seed: int, *, overwrite: bool,
) -> None:  # fmt: skip
    chosen_device = options.read_device(device)
    from voxelocity.tuning.auto3dseg import customize, read_specs
    from voxelocity.tuning.result import PAGE

    found = customize(
        work, algos, None if specs is None else read_specs(specs), out=out, device=chosen_device, seed=seed,
        memory_limit_bytes=parse_bytes(memory_limit) if memory_limit else 0, overwrite=overwrite,
        time_budget_s=options.read_budget_s(time_budget),
    )  # fmt: skip
    for result in found.values():
        typer.echo(f"see {result.folder / PAGE}")


def _put_back(work: Path, algos: list[str] | None) -> None:
    from voxelocity.tuning.auto3dseg import undo

    typer.echo(f"as before: {', '.join(undo(work, algos))}")


def _base_of(dataset: Path, overrides: dict[str, Any]) -> tuple[SavedRun | None, Path]:
    """A run and its data set; no run where a data set is named.

    Raises:
        ConfigError: the run's file is damaged, or names code that `overrides` do not name.
    """
    from voxelocity.training.run_folder import RunFolder

    folder = RunFolder(dataset)
    if not folder.holds_run:
        return None, dataset
    from voxelocity.planning import check_code
    from voxelocity.training.resume import SavedRun

    saved = SavedRun.read(folder.record)
    check_code(saved.plan, overrides, where=str(folder.record))
    return saved, saved.dataset_path(where=str(folder.record))
