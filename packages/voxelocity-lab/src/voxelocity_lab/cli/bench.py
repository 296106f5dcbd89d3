"""`voxelocity bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity.cli import options
from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.command import is_given
from voxelocity_observe.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from voxelocity.report import RunFacts

_Scenario = Annotated[
    str,
    typer.Argument(
        help="Voxelocity and its peers: cache, patches, transforms, feed, windows, build, training or monai; all "
        "of these if not given. One setting, off and on: amp, compile, memory-format, muon, stem, ramp or average; "
        "on a GPU also tf32, cudnn-benchmark or allocator. Whole trainings: time-to-target."
    ),
]
_Quick = Annotated[
    bool, typer.Option("--quick", help="Tiny volumes, in seconds: shows that it runs here, not how fast.")
]
_Out = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", help="Folder for bench_SCENARIO.json, and a page for a setting; without it nothing is written."
    ),
]
_Data = Annotated[Path | None, typer.Option("--data", help="Folder of real scans; $VOXELOCITY_DATA if not given.")]
_Work = Annotated[
    Path | None, typer.Option("--work", help="Folder that keeps the phantoms; a temporary one if not given.")
]
_Task = Annotated[str, typer.Option("--task", help="time-to-target: phantoms, hippocampus, organs, openkbp or bodies.")]
_Seeds = Annotated[int, typer.Option("--seeds", min=1, help="time-to-target: trainings per side.")]
_TimeBudget = Annotated[
    str, typer.Option("--time-budget", help="time-to-target: compare Dice after this time, not time to a Dice.")
]
_Sides = Annotated[
    str,
    typer.Option(
        "--sides", help="time-to-target: some of fast,plain,switched,nnunet,ours; all installed ones if not given."
    ),
]
_Equal = Annotated[
    bool, typer.Option("--equal", help="time-to-target: our side trains the peers' network with their optimizer.")
]


_OF_RACES = ("task", "seeds", "time_budget", "sides", "equal")


def bench(
    context: typer.Context,
    scenario: _Scenario = "",
    quick: _Quick = False,
    out: _Out = None,
    data: _Data = None,
    work: _Work = None,
    task: _Task = "phantoms",
    seeds: _Seeds = 5,
    time_budget: _TimeBudget = "",
    sides: _Sides = "",
    equal: _Equal = False,
) -> None:
    """Measure Voxelocity and its peers, or a training with a setting off and on, side by side on this machine."""
    _refuse(context, scenario)
    from voxelocity_lab.bench import NAMES, SWITCHES, comparison_section, run_scenario
    from voxelocity_lab.bench.phantom import writable_folder
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.document import section_view

    console = PlainConsole()
    if out is not None:
        writable_folder(out, option="-o")
    with interrupt.is_raised():
        if scenario in SWITCHES:
            _bench_switch(console, scenario, quick=quick, out=out, data=data, work=work)
            return
        if scenario == "time-to-target":
            _bench_race(console, task, seeds, time_budget, sides, is_equal=equal, out=out, data=data, work=work)
            return
        for name in [scenario] if scenario else NAMES:
            record = run_scenario(
                name,
                quick=quick,
                on_comparison=lambda found: console.print(section_view(comparison_section(found)), "", highlight=False),
                work=work,
                data=data,
            )
            if out is not None:
                console.print(f"see {record.write(out)[0]}", highlight=False)


def _refuse(context: typer.Context, scenario: str) -> None:
    """Returns if no option is given that this scenario does not have; an InputError names it."""
    if scenario == "time-to-target":
        if is_given(context, "quick"):
            raise InputError("bench: time-to-target has no quick form; leave --quick out, or give --time-budget")
    elif given := [f"--{name.replace('_', '-')}" for name in _OF_RACES if is_given(context, name)]:
        raise InputError(f"bench: {', '.join(given)} is for time-to-target alone; leave it out, or name that scenario")


def _bench_race(
    console: Console,
    task: str,
    num_seeds: int,
    time_budget: str,
    sides: str,
    *,
    is_equal: bool,
    out: Path | None,
    data: Path | None,
    work: Path | None,
) -> None:
    from voxelocity.report import accuracy_sentence
    from voxelocity_lab.bench import comparison_section
    from voxelocity_lab.bench.race.scenario import RaceSettings, check_sides, run_race
    from voxelocity_observe.document import TableView, section_view

    budget_s = options.read_budget_s(time_budget)
    names = check_sides([name for name in sides.split(",") if name])
    settings = RaceSettings(task=task, num_seeds=num_seeds, budget_s=budget_s, sides=names, is_equal=is_equal)
    record, outcome = run_race(
        settings, work=work, data=data, out=out, on_start=lambda side, seed: console.rule(f"{side}, seed {seed}")
    )
    console.print(TableView(outcome.table), "")
    console.print(section_view(comparison_section(record.comparisons[0])), highlight=False)
    if (parity := outcome.parity()) is not None:
        console.print(accuracy_sentence(parity, outcome.sides[0][0].label, outcome.sides[-1][0].label), "")
    if out is not None:
        console.print(f"see {out / f'bench_{record.name}.html'}", highlight=False)


def _bench_switch(
    console: Console, name: str, *, quick: bool, out: Path | None, data: Path | None, work: Path | None
) -> None:
    from voxelocity_lab.bench import run_switch
    from voxelocity_observe.core.quantities import duration_text
    from voxelocity_observe.document import document_view

    if data is not None:
        raise InputError(f"bench: '{name}' trains on phantoms and has no use for --data; leave it out")

    def report_run(label: str, run: RunFacts) -> None:
        console.print(f"{label}: trained in {duration_text(run.seconds)}", highlight=False)

    record = run_switch(name, quick=quick, work=work, on_run=report_run)
    page = record.document()
    console.print("", page.title, style="bold")
    console.print(page.summary, "", highlight=False)
    console.print(document_view(page), "", highlight=False)
    for path in record.write(out) if out is not None else ():
        console.print(f"see {path}", highlight=False, soft_wrap=True)
