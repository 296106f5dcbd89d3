"""What the pages and records of recipes share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxelocity_lab.bench.comparison import Comparison, Record, comparison_section
from voxelocity_lab.recipes.call import Call
from voxelocity_observe.document import section_view, write_figures, write_page
from voxelocity_observe.document.blocks import Block, Chart, Document, Section, below_heading, fact_table
from voxelocity_observe.document.charts import Series, time_chart
from voxelocity_observe.document.settings import key_value_table

BASELINES, BASELINES_KEY = "Compared with baselines that need no training", "baselines"
"""The section of a page with the same figures of an untrained network and of trivial ways."""


def unlearned_verdict(why: str) -> str:
    """The verdict on a network whose training was too short to be scored."""
    return f"No score, because the training is too short: {why}."


def write_report(call: Call, document: Document, results: Path) -> None:
    """Writes `scores.json` and `report.html` into the call's folder, and says so, and where the results are.

    Notices, the verdict and what the figures stand next to are shown.
    """
    write_figures(document, call.out / "scores.json")
    write_page(document, call.out / "report.html")
    for notice in document.notices:
        call.console.print(f"warning: {notice}", style="yellow", highlight=False, soft_wrap=True)
    call.console.print(document.verdict, highlight=False, soft_wrap=True)
    for section in document.sections:
        if section.key == BASELINES_KEY and section.blocks:
            call.console.print(section_view(section), highlight=False)
    call.console.print(f"see {call.out / 'report.html'} and {results}", highlight=False, soft_wrap=True)


def write_benchmark(
    call: Call, name: str, comparisons: Sequence[Comparison], settings: Mapping[str, Any], details: Mapping[str, Any]
) -> None:
    """Shows what was compared, and writes `bench_NAME.json` and its page into the run's folder."""
    others = Section(title="Also measured", blocks=below_heading(key_value_table("Also measured", details)))
    for section in [*map(comparison_section, comparisons), others]:
        call.console.print(section_view(section), "", highlight=False)
    record = Record(
        name=name,
        command=f"voxelocity recipe {name} benchmark {call.data.name} -o RUN",
        settings=settings,
        comparisons=tuple(comparisons),
        details=details,
    )
    call.console.print(f"see {record.write(call.out)[0]}", highlight=False, soft_wrap=True)


def training_blocks(events: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> list[Block]:
    """The loss over time, and the settings in words."""
    steps = [event for event in events if event["event"] == "steps" and event["loss"] is not None]
    points = [(float(event["time_s"]), float(event["loss"])) for event in steps]
    blocks: list[Block] = [fact_table("Settings", settings.items())]
    if len(points) > 1:
        svg = time_chart("loss", [Series(points=points)], y_label="loss")
        last = points[-1][1]
        blocks.insert(0, Chart(title="Loss", svg=svg, alt=f"The loss goes from {points[0][1]:.3f} to {last:.3f}."))
    return blocks


def number_text(value: float, digits: int = 2) -> str:
    """A number, or "n/a" for NaN."""
    return "n/a" if math.isnan(value) else f"{value:.{digits}f}"
