"""`voxelocity tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import options
from voxelocity.core.requests.tune import CustomizeRequest, TuneRequest
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.request import request_fields

if TYPE_CHECKING:
    from voxelocity.training.resume import SavedRun
    from voxelocity.tuning.tune import Tuning
    from voxelocity_observe.core.console import PlainConsole

_Dataset = Annotated[
    Path,
    typer.Argument(
        help="A data set, as for `train`; the folder of a run, to improve its plan; with --auto3dseg, a work folder "
        "of MONAI's Auto3DSeg, to tune its algorithms."
    ),
]
_Specs = Annotated[
    Path | None, typer.Option("--specs", help="For a work folder: Auto3DSeg's gpu_customization_specs as YAML.")
]
_Algos = Annotated[str, typer.Option("--algos", help="For a work folder: only these algorithms: segresnet,dints.")]
_Auto3dseg = Annotated[
    bool,
    typer.Option("--auto3dseg", help="Allow running the Python code of the algorithms in the work folder."),
]
_Undo = Annotated[bool, typer.Option("--undo", help="For a work folder: restore what a tuning replaced.")]


@options_of(TuneRequest, optional=("out",))
def tune(
    asked: Asked[TuneRequest],
    dataset: _Dataset,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    specs: _Specs = None,
    algos: _Algos = "",
    undo: _Undo = False,
    auto3dseg: _Auto3dseg = False,
) -> None:
    """Measure which settings are best on this machine for a run on DATASET; later plans use them."""
    if specs is not None or algos or undo or auto3dseg:
        keys = [flag for flag, value in (("--config", config), ("--set", sets)) if value]
        chosen = [name.strip() for name in algos.split(",") if name.strip()] or None
        _tune_work_folder(asked, dataset, chosen, specs, undo=undo, keys=keys)
        return
    overrides = options.read_overrides(config, sets)
    # Before any folder is looked into.
    asked.request(out=asked.values.get("out", Path()), overrides=overrides)
    if any(dataset.glob("*/algo_object.json")) and not (dataset / "dataset.json").exists():
        raise ConfigError(
            f"tune: {dataset} is a work folder of Auto3DSeg, whose algorithms are Python code in it; if you trust that "
            "code, run it with --auto3dseg"
        )
    base, place = _base_of(dataset, overrides)
    found: dict[str, Any] = {"overrides": overrides}
    if base is not None:
        found["fold"] = asked.values.get("fold", base.fold)
    if "out" not in asked.values:
        if base is not None:
            from voxelocity_observe.core.links import check_links

            check_links(dataset, ("tune",), where="tune")
        found["out"] = dataset / "tune" if base is not None else Path(f"tune-{dataset.resolve().stem}")
    request = asked.request(**found)
    from voxelocity.data.source import open_cases
    from voxelocity.parallel import read_place
    from voxelocity.report import read_run
    from voxelocity.tuning.tune import TuneContext, run_tuning
    from voxelocity_observe.core.console import PlainConsole

    console = PlainConsole(quiet=read_place().rank > 0)
    context = TuneContext(console=console)
    if base is not None:
        context = TuneContext(base=base.plan, run=read_run(dataset), console=console)
    _show(run_tuning(open_cases(place), request, context), console)


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


def _tune_work_folder(
    asked: Asked[TuneRequest],
    work: Path,
    algos: list[str] | None,
    specs: Path | None,
    *,
    undo: bool,
    keys: Sequence[str],
) -> None:
    """Customizes the algorithms of a work folder of Auto3DSeg, or puts back what they were.

    Args:
        asked: the options, of which a work folder takes some.
        work: the folder.
        algos: those that are meant; None for all.
        specs: a file of MONAI's `gpu_customization_specs`.
        undo: whether to put back.
        keys: options of the plan that were given.

    Raises:
        ConfigError: an option was given that only a run has, or several processes were started.
    """
    known = request_fields(CustomizeRequest)
    if of_runs := [*(text for name, text in asked.written.items() if name not in known), *keys]:
        raise ConfigError(
            f"tune: {of_runs[0]} means nothing for a work folder of Auto3DSeg; write it into --specs, or leave it out"
        )
    from voxelocity.parallel import read_place

    if not read_place().is_alone:
        # Several would write the same files.
        raise ConfigError(
            "tune: one process tunes a work folder of Auto3DSeg; start it without launch, torchrun, srun or mpirun"
        )
    from voxelocity.tuning.auto3dseg.customizing import customize_folder
    from voxelocity.tuning.auto3dseg.customizing import undo as put_back
    from voxelocity.tuning.auto3dseg.specs import read_specs
    from voxelocity.tuning.result import PAGE

    if undo:
        typer.echo(f"as before: {', '.join(put_back(work, algos))}")
        return
    request = asked.make(
        CustomizeRequest, work_dir=work, algos=algos, specs=None if specs is None else read_specs(specs)
    )
    for result in customize_folder(request).values():
        typer.echo(f"see {result.folder / PAGE}")


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
