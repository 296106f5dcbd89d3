"""`voxelocity bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxelocity_observe.cli import interrupt
from voxelocity_observe.cli.asking import Asked, options_of
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option, UserRequest

if TYPE_CHECKING:
    from rich.console import Console

    from voxelocity.report import RunFacts

_Scenario = Annotated[
    str,
    typer.Argument(
        help="Voxelocity and other toolkits: cache, patches, transforms, feed, windows, build, training or monai; "
        "default: all of these. One setting, off and on: caching, thread-buffer, amp, compile, memory-format, "
        "dice-ce, novograd, muon, stem, ramp or average; on a GPU also tf32, cudnn-benchmark or allocator. Whole "
        "trainings: time-to-target."
    ),
]


@dataclass(frozen=True, kw_only=True)
class _BenchRequest(UserRequest):
    """What a benchmark takes; the last eight fields are for trainings to a target."""

    quick: Annotated[bool, Option()] = False
    """Tiny volumes, in seconds: shows that it runs here, not how fast."""
    out: Annotated[Path | None, Option(flags=("-o", "--out"))] = None
    """Folder for bench_SCENARIO.json and its page; without it nothing is written."""
    data: Annotated[Path | None, Option()] = None
    """Folder of real scans; $VOXELOCITY_DATA if not given."""
    work: Annotated[Path | None, Option()] = None
    """Folder that keeps the phantoms; a temporary one if not given."""
    task: Annotated[str, Option()] = "phantoms"
    """time-to-target: phantoms, hippocampus, organs, openkbp or bodies."""
    seeds: Annotated[int, Option(least=1)] = 5
    """time-to-target: trainings per side."""
    time_budget_s: Annotated[float, Option(flags=("--time-budget",), read=parse_duration_s, shown="")] = 0.0
    """time-to-target: compare Dice after this time, not time to a Dice."""
    sides: Annotated[str, Option()] = ""
    """time-to-target: some of fast,plain,switched,nnunet,equal,ours; all installed ones but equal if not given.

    equal is our side with the peers' network and optimizer, ours has its own choices.
    """
    equal: Annotated[bool, Option()] = False
    """time-to-target: our side trains the peers' network with their optimizer."""
    cold: Annotated[bool, Option()] = False
    """time-to-target: each side trains twice a round, in a home folder that is empty the first time."""
    limit_s: Annotated[float, Option(flags=("--limit",), read=parse_duration_s, shown="8m")] = 480.0
    """time-to-target: a training that has not reached the Dice by then ends, and counts as that long."""
    within_s: Annotated[float, Option(flags=("--within",), read=parse_duration_s, shown="")] = 0.0
    """time-to-target: begin no round that would end later."""


_OF_RACES = ("task", "seeds", "time_budget_s", "sides", "equal", "cold", "limit_s", "within_s")


@options_of(_BenchRequest)
def bench(asked: Asked[_BenchRequest], scenario: _Scenario = "") -> None:
    """Compare Voxelocity with other toolkits, or a training with a setting off and on, on this machine."""
    request = asked.request()
    _refuse(request, scenario)
    from voxelocity_lab.bench import NAMES, SWITCHES, comparison_section, run_scenario
    from voxelocity_lab.bench.phantom import writable_folder
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.document import section_view

    console = PlainConsole()
    if request.out is not None:
        writable_folder(request.out, option="-o")
    with interrupt.is_raised():
        if scenario in SWITCHES:
            _bench_switch(console, scenario, request)
            return
        if scenario == "time-to-target":
            _bench_race(console, request)
            return
        for name in [scenario] if scenario else NAMES:
            record = run_scenario(
                name,
                quick=request.quick,
                on_comparison=lambda found: console.print(section_view(comparison_section(found)), "", highlight=False),
                work=request.work,
                data=request.data,
            )
            if request.out is not None:
                console.print(f"see {record.write(request.out)[0]}", highlight=False)


def _refuse(request: _BenchRequest, scenario: str) -> None:
    """Returns if no option is given that this scenario does not have; an InputError names it."""
    if scenario == "time-to-target":
        if request.quick:
            raise InputError("bench: time-to-target has no quick form; leave --quick out, or give --time-budget")
        if request.is_given("time_budget_s") and request.is_given("limit_s"):
            raise request.refusal(
                "a training within a budget has no other limit; give one of the two", "time_budget_s", "limit_s"
            )
    elif given := [name for name in _OF_RACES if request.is_given(name)]:
        raise request.refusal("only for time-to-target; leave it out, or name that scenario", *given)


def _bench_race(console: Console, request: _BenchRequest) -> None:
    from voxelocity.report import accuracy_sentence
    from voxelocity_lab.bench import comparison_section
    from voxelocity_lab.bench.race.scenario import RaceSettings, check_sides, run_race
    from voxelocity_observe.document import TableView, section_view

    names, out = check_sides(request.sides.replace(",", " ").split()), request.out
    settings = RaceSettings(
        task=request.task,
        num_seeds=request.seeds,
        budget_s=request.time_budget_s,
        sides=names,
        is_equal=request.equal,
        limit_s=request.limit_s,
        has_homes=request.cold,
        within_s=request.within_s,
    )
    record, outcome = run_race(
        settings,
        work=request.work,
        data=request.data,
        out=out,
        on_start=lambda side, seed: console.rule(f"{side}, seed {seed}"),
    )
    console.print(TableView(outcome.table), "")
    if outcome.factor_table.rows:
        console.print(TableView(outcome.factor_table), "")
    for comparison in record.comparisons:
        console.print(section_view(comparison_section(comparison)), highlight=False)
    if (parity := outcome.parity()) is not None:
        console.print(accuracy_sentence(parity, outcome.sides[0][0].label, outcome.sides[-1][0].label), "")
    if out is not None:
        console.print(f"see {out / f'bench_{record.name}.html'}", highlight=False)


def _bench_switch(console: Console, name: str, request: _BenchRequest) -> None:
    from voxelocity_lab.bench import run_switch
    from voxelocity_observe.core.quantities import duration_text
    from voxelocity_observe.document import document_view

    if request.data is not None:
        raise InputError(f"bench: '{name}' trains on phantoms and has no use for --data; leave it out")

    def report_run(label: str, run: RunFacts) -> None:
        console.print(f"{label}: trained in {duration_text(run.seconds)}", highlight=False)

    record = run_switch(name, quick=request.quick, work=request.work, on_run=report_run)
    page = record.document()
    console.print("", page.title, style="bold")
    console.print(page.summary, "", highlight=False)
    console.print(document_view(page), "", highlight=False)
    for path in record.write(request.out) if request.out is not None else ():
        console.print(f"see {path}", highlight=False, soft_wrap=True)
