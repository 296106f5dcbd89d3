"""The page of a monitor's record: a single, self-explanatory file that works offline and runs no script."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.quantities import count_text, duration_text, share_text
from voxelocity.core.whole_file import write_whole
from voxelocity.monitoring.drawn.columns import Columns
from voxelocity.monitoring.drawn.phases import Phase, phases_of, stretches_of
from voxelocity.monitoring.drawn.summary import cards, device_table, ended_text, phase_table, sentence, title_of
from voxelocity.monitoring.drawn.timelines import gpu_timelines, host_timelines
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.tables import machine_table
from voxelocity.report.timeline import Stretch, Timeline, timeline_svg
from voxelocity.report.views import BarPart, LegendEntry, render


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart of the page, drawn, with its texts."""

    title: str
    svg: str
    alt: str
    legend: Sequence[LegendEntry]


def render_monitor_page(record: MonitorRecord, path: str | Path) -> Path:
    """The path, which now holds the timeline of the record as one HTML file; it is replaced in one move.

    The same record gives the same bytes. About 0.1 s of one core per chart, and 0.5 s for the first of a process; a
    record of 100,000 samples takes some seconds more. Neither the number of samples nor of phases makes the page larger
    than a few hundred KiB.

    Raises:
        OutputError: the file cannot be written.
    """
    columns = Columns(record)
    phases = phases_of(record.phases)
    stretches = stretches_of(phases, columns.until_s) if phases else []
    command = shlex.join(record.command)
    context = {
        "title": title_of(record),
        "status": _status(record),
        "sentence": sentence(columns),
        "cards": cards(columns),
        "phase_legend": _legend_of(phases, {stretch.name for stretch in stretches}),
        "phase_strip": _strip(stretches, columns.until_s),
        "phases": phase_table(columns, phases),
        "num_ranks": len({mark.rank for mark in record.phases}),
        "host_charts": [_chart(timeline, stretches) for timeline in host_timelines(columns)],
        "gpu_charts": [_chart(timeline, stretches) for timeline in gpu_timelines(columns)],
        "devices": device_table(columns) if columns.devices else None,
        "missing": record.missing,
        "own_cost": _own_cost(record),
        "machine": machine_table(record.environment) if record.environment else None,
        "command": command,
    }
    return write_whole(path, render("monitor.html.j2", **context))


def _status(record: MonitorRecord) -> str:
    if not record.command:
        return ""
    if record.status is None:
        return "unfinished"
    return "finished" if record.status == 0 else ended_text(record).removeprefix("the command ")


def _chart(timeline: Timeline, stretches: Sequence[Stretch]) -> Chart:
    entries = [
        LegendEntry(
            name=line.name,
            color=f"var(--{line.color})",
            is_dashed=line.stroke == "dashed",
            is_dotted=line.stroke == "dotted",
        )
        for line in timeline.lines
    ]
    entries += [LegendEntry(name=band.name, color=f"var(--{band.color}-faint)") for band in timeline.bands]
    if timeline.limit is not None:
        entries.append(LegendEntry(name=timeline.limit_name, color="var(--chart-target)", is_dashed=True))
    names = ", ".join(entry.name for entry in entries)
    return Chart(
        title=timeline.title,
        svg=timeline_svg(timeline, stretches),
        alt=f"Line chart: {timeline.title} over time, in {timeline.y_label}; {names}.",
        legend=entries,
    )


def _legend_of(phases: Sequence[Phase], seen: Collection[str]) -> list[LegendEntry]:
    """The phases visible in the strip; a phase that others cover completely is not."""
    return [LegendEntry(name=phase.name, color=_css(phase.color)) for phase in phases if phase.name in seen]


def _css(color: str) -> str:
    return color if color.startswith("#") else f"var(--{color})"


def _strip(stretches: Sequence[Stretch], until_s: float) -> list[tuple[BarPart, str]]:
    """The stretches as pieces of a bar as long as the record, each with its color."""
    scale = 100.0 / (until_s or 1.0)
    return [
        (
            BarPart(
                name=stretch.name,
                start=stretch.start_s * scale,
                width=(stretch.stop_s - stretch.start_s) * scale,
                style="",
            ),
            _css(stretch.color),
        )
        for stretch in stretches
    ]


def _own_cost(record: MonitorRecord) -> str:
    if record.seconds <= 0.0:
        return ""
    share = record.own_cpu_s / record.seconds
    share_words = "less than 0.1 %" if 0.0 < share < 0.0005 else share_text(share)
    samples = count_text(len(record.samples), "sample")
    return (
        f"Taking {samples} cost {duration_text(record.own_cpu_s)} of CPU time, {share_words} of one core "
        "while it watched."
    )
