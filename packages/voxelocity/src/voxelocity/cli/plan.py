"""`voxelocity plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity.cli import options, phases
from voxelocity.core.requests.plan import RunPlanRequest
from voxelocity_observe.cli.asking import Asked, options_of

if TYPE_CHECKING:
    from voxelocity.planning import Planned
    from voxelocity_observe.document.blocks import Document


@options_of(RunPlanRequest)
def plan(
    asked: Asked[RunPlanRequest],
    dataset: options.Dataset,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    no_tuned: options.NoTuned = False,
    memory: Annotated[bool, typer.Option("--memory", help="Show the memory that the run will take, by part.")] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            help="With --memory: the same with other values, such as data.batch_size=8 or classes=20; separate "
            "several keys with semicolons.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan and its reasons as JSON.")] = False,
) -> None:
    """Show what `train` would do with DATASET, and why, without training."""
    request = asked.request(overrides=options.read_overrides(config, sets, no_tuned=no_tuned))
    from voxelocity.data.source import open_cases

    options.check_is_no_run(dataset)
    cases = open_cases(dataset)
    from voxelocity.planning import absent_from_plan
    from voxelocity.report import dataset_panel, plan_table
    from voxelocity.training import plan_run
    from voxelocity.training.exposure import exposure_text
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.document import document_view
    from voxelocity_observe.spans import phase

    phases.start_up_is_over()
    with phase("plan", color="silver"):
        planned = plan_run(cases, request)
    record = planned.to_record()
    cases_of = {
        text: options.read_assignments([part for part in text.split(";") if part.strip()], option="--what-if")
        for text in what_if or []
    }
    estimate = _memory(planned, cases_of) if memory or cases_of else None
    if estimate is not None:
        record["memory"] = estimate.to_plain()
    if as_json:
        print(json.dumps(record, indent=1))
        return
    console = PlainConsole()
    console.print(dataset_panel(record["dataset"], record["fingerprint"]))
    console.print(plan_table(planned.choices))
    warnings = [f"plan: {text}" for text in absent_from_plan(planned)]
    if planned.exposed:
        warnings.append(exposure_text(planned))
    for text in warnings:
        console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)
    if estimate is not None:
        console.print(document_view(estimate))


def _memory(planned: Planned, what_if: Mapping[str, Mapping[str, Any]]) -> Document:
    """The memory of the plan and of each case of `--what-if`."""
    from voxelocity.planning.memory_estimate import estimate_memory, memory_document
    from voxelocity.training.library_memory import measure_libraries

    libraries = measure_libraries(planned)
    estimates = {"As planned": estimate_memory(planned, libraries)}
    estimates |= {f"With {text}": estimate_memory(planned, libraries, keys=keys) for text, keys in what_if.items()}
    machine = planned.machine
    return memory_document(estimates, free={"host": machine.memory_bytes, "device": machine.device_free_bytes})
