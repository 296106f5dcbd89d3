"""The page of a monitor's record: a single, self-explanatory file that works offline and runs no script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from voxelocity.core.quantities import count_text, duration_text, share_text
from voxelocity.monitoring.drawn.columns import Columns
from voxelocity.monitoring.drawn.phases import Phase, phases_of, stretches_of
from voxelocity.monitoring.drawn.summary import cards, device_table, ended_text, phase_table, sentence, title_of
from voxelocity.monitoring.drawn.timelines import gpu_timelines, host_timelines
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.document import (
    BarPart,
    Block,
    Chart,
    Code,
    Document,
    LegendEntry,
    Lines,
    Pair,
    Section,
    Text,
    TimeBar,
    TimeBars,
)
from voxelocity.report.html import write_page
from voxelocity.report.tables import machine_table
from voxelocity.report.timeline import Stretch, Timeline, timeline_svg


def render_monitor_page(record: MonitorRecord, path: str | Path) -> Path:
    """The path, which now holds the timeline of the record as one HTML file; it is replaced in one move.

    The same record gives the same bytes. About 0.1 s of one core per chart, and 0.5 s for the first of a process; a
    record of 100,000 samples takes some seconds more. Neither the number of samples nor of phases makes the page larger
    than a few hundred KiB.

    Raises:
        OutputError: the file cannot be written.
    """
    return write_page(monitor_document(record), path)


def monitor_document(record: MonitorRecord) -> Document:
    """The record with its charts."""
    columns = Columns(record)
    phases = phases_of(record.phases)
    stretches = stretches_of(phases, columns.until_s) if phases else []
    charts = [_chart(timeline, stretches) for timeline in host_timelines(columns)]
    machine = [machine_table(record.environment).without_caption()] if record.environment else []
    return Document(
        kind="monitor",
        title=title_of(record),
        status=_status(record),
        verdict=sentence(columns),
        cards=cards(columns),
        sections=[
            Section(title="Phases", blocks=_phases(columns, phases, stretches) if stretches else []),
            Section(title="Host", blocks=[Pair(blocks=charts)] if charts else []),
            Section(title="GPU", blocks=_gpus(columns, stretches)),
            Section(
                title="What was not measured",
                blocks=[
                    Lines(lines=record.missing)
                    if record.missing
                    else Text(text="Everything that was asked for was measured.", is_hint=True)
                ],
            ),
            Section(title="Own cost and machine", blocks=[*_own_cost(record), *machine]),
            Section(title="The command", blocks=[Code(text=shlex.join(record.command))] if record.command else []),
        ],
        footer="Made from the samples in the folder of the record. Rates are means over the time since the previous "
        "sample.",
    )


def _phases(columns: Columns, phases: Sequence[Phase], stretches: Sequence[Stretch]) -> list[Block]:
    num_ranks = len({mark.rank for mark in columns.record.phases})
    ranks = f"Phases of the first of {num_ranks} ranks. " if num_ranks > 1 else ""
    names = {stretch.name for stretch in stretches}
    return [
        TimeBars(
            caption="Phases over time; the table has their times",
            bars=[TimeBar(parts=_strip(stretches, columns.until_s))],
            # A phase that others cover completely is not visible in the bar.
            legend=[LegendEntry(name=phase.name, color=_css(phase.color)) for phase in phases if phase.name in names],
            is_dense=True,
        ),
        phase_table(columns, phases).without_caption(),
        Text(
            text=f"{ranks}A phase within another counts for both, and the inner one is drawn. Means are over the "
            "samples in a phase; the shorter a phase is compared with the time between samples, the less they say. The "
            "charts below show the colors behind their lines.",
            is_hint=True,
        ),
    ]


def _gpus(columns: Columns, stretches: Sequence[Stretch]) -> list[Block]:
    charts = [_chart(timeline, stretches) for timeline in gpu_timelines(columns)]
    devices = [device_table(columns).without_caption()] if columns.devices else []
    return [*([Pair(blocks=charts)] if charts else []), *devices]


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


def _css(color: str) -> str:
    return color if color.startswith("#") else f"var(--{color})"


def _strip(stretches: Sequence[Stretch], until_s: float) -> list[BarPart]:
    """The stretches as pieces of a bar as long as the record."""
    scale = 100.0 / (until_s or 1.0)
    return [
        BarPart(
            name=stretch.name,
            start=stretch.start_s * scale,
            width=(stretch.stop_s - stretch.start_s) * scale,
            color=_css(stretch.color),
        )
        for stretch in stretches
    ]


def _own_cost(record: MonitorRecord) -> list[Block]:
    if record.seconds <= 0.0:
        return []
    share = record.own_cpu_s / record.seconds
    share_words = "less than 0.1 %" if 0.0 < share < 0.0005 else share_text(share)
    samples = count_text(len(record.samples), "sample")
    cost = f"Taking {samples} cost {duration_text(record.own_cpu_s)} of CPU time, {share_words} of one core"
    return [Text(text=f"{cost} while it watched.")]
