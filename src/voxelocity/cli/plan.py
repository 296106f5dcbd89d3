"""`voxelocity plan`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from voxelocity.cli import options, phases


def plan(
    context: typer.Context,
    dataset: options.Dataset,
    fold: options.FoldText = "0",
    time_budget: options.Budget = "",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    no_tuned: options.NoTuned = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan and its reasons as JSON.")] = False,
) -> None:
    """Show what `train` would do with DATASET, and why, without doing it."""
    overrides = options.read_overrides(config, sets, no_tuned=no_tuned)
    chosen_fold, chosen_device = options.read_fold(fold), options.read_device(device)
    from voxelocity.core.config import AUTO
    from voxelocity.core.quantities import parse_duration_s
    from voxelocity.data.source import open_cases

    budget_s = parse_duration_s(time_budget) if time_budget else AUTO
    cases = open_cases(dataset)
    from voxelocity.core.console import PlainConsole
    from voxelocity.observe import phase
    from voxelocity.planning import make_plan
    from voxelocity.report import dataset_panel, plan_table

    phases.start_up_is_over()
    with phase("plan", color="silver"):
        planned = make_plan(
            cases,
            fold=chosen_fold,
            time_budget_s=budget_s,
            seed=seed if options.is_given(context, "seed") else AUTO,
            device=chosen_device,
            overrides=overrides,
        )
    record = planned.to_record()
    if as_json:
        print(json.dumps(record, indent=1))
        return
    console = PlainConsole()
    console.print(dataset_panel(record["dataset"], record["fingerprint"]))
    console.print(plan_table(planned.choices))
