"""The page of one run: a single file that explains itself, works offline and runs no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.quantities import (
    count_text,
    dice_text,
    duration_text,
    mm_text,
    rate_text,
    share_text,
    value_text,
)
from voxelocity.core.whole_file import write_whole
from voxelocity.report.charts import time_chart
from voxelocity.report.choices import HOW_TO_CHANGE, choice_groups
from voxelocity.report.factors import factor_table_view
from voxelocity.report.labeled import LabeledRun, label_run
from voxelocity.report.palette import css_color
from voxelocity.report.progress import dice_series, loss_series
from voxelocity.report.records import RunFacts
from voxelocity.report.slices import overlay, png_data_uri
from voxelocity.report.summary import (
    absent_text,
    mean_dice,
    mean_hd95_mm,
    part_shares,
    stage_shares,
    throughput,
    verdict,
    without_surface_text,
    worst_first,
)
from voxelocity.report.tables import (
    case_table,
    class_table,
    dataset_table,
    machine_table,
    settings_table,
    spread_table,
    statistics_table,
    time_table,
    validation_table,
)
from voxelocity.report.views import Card, LegendEntry, Table, bar_parts, render

_NUM_WORST_CASES = 10
_NOT_HELD_OUT = (
    "Not held out: the network was judged on the cases it was trained on (fold = all). "
    "These scores do not show how well it does on new scans."
)


def render_page(run: RunFacts, path: str | Path, *, baseline: LabeledRun | None = None) -> Path:
    """The path, which now holds the report of the run as one HTML file.

    The same facts give the same bytes. An unfinished run is shown as far as it got.

    Args:
        run: what `read_run` returned.
        path: file to write; it is replaced in one move.
        baseline: another training to compare with; adds a table of factors.

    Raises:
        InputError: the baseline has the label of the run.
        OutputError: the file cannot be written.
    """
    context = {
        "title": run.dataset.name,
        "status": run.status,
        "verdict": verdict(run),
        "notices": _notices(run),
        "cards": _cards(run),
        "factors": None if baseline is None else _factors(run, baseline),
        "command": run.command,
        "warnings": run.warnings,
        "choice_groups": _choice_groups(run),
        "num_choices": len(run.choices),
        "how_to_change": HOW_TO_CHANGE,
        "settings": settings_table(run),
        "machine": machine_table(run.environment, device=run.device),
        **_curves(run),
        **_slices(run),
        **_scores(run),
        **_times(run),
        **_dataset(run),
    }
    return write_whole(path, render("run.html.j2", **context))


def _choice_groups(run: RunFacts) -> list[dict[str, Any]]:
    """Groups of choices, each choice with its value in words."""
    return [
        {
            "title": group.title,
            "hint": group.hint,
            "rows": [(choice, value_text(choice.value, choice.key)) for choice in group.choices],
        }
        for group in choice_groups(run.choices)
    ]


def _notices(run: RunFacts) -> list[str]:
    notices = [] if run.dataset.held_out else [_NOT_HELD_OUT]
    if run.status == "unfinished":
        notices.append("This run has not finished: it is still going, or it was killed. All figures are as of now.")
    if run.status == "interrupted" and run.step == 0:
        notices.append("This run was stopped before its first training step; the same command trains it.")
    elif run.status == "interrupted":
        notices.append("This run was stopped and has saved its state; the same command continues from there.")
    return notices


def _cards(run: RunFacts) -> list[Card]:
    speed = throughput(run)
    hd95_mm = mean_hd95_mm(run.scores)
    budget = "no time budget" if run.budget_s is None else f"of a budget of {duration_text(run.budget_s)}"
    final, best = mean_dice(run), run.best_validation
    worst = worst_first(run.scores)[:1]
    if final is None and best is not None:
        dice = Card(name="Best Dice so far", value=dice_text(best.mean_dice), note="on the way, foreground mean")
    else:
        lowest = worst[0].mean_dice if worst else None
        note = "mean over the foreground" if lowest is None else f"lowest case {dice_text(lowest)}"
        note = "; ".join(filter(None, (note, absent_text(run.scores))))
        dice = Card(name="Mean Dice", value=dice_text(final), note=note)
    return [
        dice,
        Card(
            name="Surface distance",
            value=mm_text(hd95_mm) + (" mm" if hd95_mm is not None else ""),
            note="; ".join(filter(None, ("HD95, mean over cases and classes", without_surface_text(run.scores)))),
        ),
        Card(
            name="Images per second", value=rate_text(speed.images_per_s), note=f"over {count_text(run.step, 'step')}"
        ),
        Card(name="Waiting for data", value=share_text(speed.wait_share), note="of the training time"),
        Card(name="Total time", value=duration_text(run.seconds), note=budget),
    ]


def _factors(run: RunFacts, baseline: LabeledRun) -> Table:
    return factor_table_view([baseline, label_run(run, "This run")], target_dice=run.target_dice)


def _curves(run: RunFacts) -> dict[str, Any]:
    loss = dice = ""
    if run.steps:
        loss = time_chart("loss", loss_series(run), y_label="loss", until_s=run.seconds)
    series = dice_series(run)
    if run.validations:
        dice = time_chart(
            "dice", series, y_label="Dice", y_limits=(0.0, 1.0), target=run.target_dice, until_s=run.seconds
        )
    best = run.best_validation
    legend = [LegendEntry(name="mean", color="var(--ink)")]
    if len(series) > 1:
        names = enumerate(run.foreground, start=1)
        legend.extend(LegendEntry(name=name, color=f"var(--class-{index})") for index, name in names)
    if run.target_dice:
        target = LegendEntry(name=f"target {dice_text(run.target_dice)}", color="var(--chart-target)", is_dashed=True)
        legend.append(target)
    return {
        "loss_chart": loss,
        "loss_alt": f"Line chart: training loss over time, last value {run.steps[-1].loss:.3f}." if run.steps else "",
        "dice_chart": dice,
        "dice_alt": "" if best is None else f"Line chart: validation Dice over time, best mean {best.mean_dice:.3f}.",
        "dice_legend": legend,
        "validations": validation_table(run),
    }


def _slices(run: RunFacts) -> dict[str, Any]:
    drawn = [
        {
            "title": figure.title,
            "truth": png_data_uri(overlay(figure.image, figure.truth)),
            "prediction": png_data_uri(overlay(figure.image, figure.prediction)),
        }
        for figure in run.slices
    ]
    planes = [plane for figure in run.slices for plane in (figure.truth, figure.prediction)]
    shown = {int(index) for plane in planes for index in np.unique(plane)}
    names = dict(enumerate(run.dataset.classes))
    legend = [
        LegendEntry(name=names.get(index, f"class {index}"), color=css_color(index)) for index in sorted(shown - {0})
    ]
    return {"slices": drawn, "slice_legend": legend}


def _scores(run: RunFacts) -> dict[str, Any]:
    ordered = worst_first(run.scores)
    worst, rest = ordered[:_NUM_WORST_CASES], ordered[_NUM_WORST_CASES:]
    caption = f"The {_NUM_WORST_CASES} worst cases" if rest else "All cases, worst first"
    return {
        "classes": class_table(run.scores),
        "cases": case_table(worst, caption),
        "more_cases": case_table(rest, "The other cases, worst first") if rest else None,
        "num_more_cases": len(rest),
    }


def _times(run: RunFacts) -> dict[str, Any]:
    stages, parts = stage_shares(run), part_shares(run)
    return {
        "stages": bar_parts(stages),
        "stage_table": time_table(stages, "Wall time by stage"),
        "parts_of_step": bar_parts(parts),
        "part_table": time_table(parts, "Training steps by activity"),
        "num_sessions": len(run.starts),
    }


def _dataset(run: RunFacts) -> dict[str, Any]:
    return {
        "dataset": dataset_table(run),
        "spreads": spread_table(run.fingerprint),
        "statistics": statistics_table(run.fingerprint),
    }
