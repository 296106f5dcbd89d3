"""Page and picture of a monitor's record: single files that explain themselves and work offline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from voxelocity_observe.core.quantities import count_text, duration_text, joined, share_text
from voxelocity_observe.document.blocks import (
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
from voxelocity_observe.document.charts import LIGHT_COLORS, literally, write_png
from voxelocity_observe.document.html import write_page
from voxelocity_observe.document.settings import machine_table
from voxelocity_observe.document.timeline import TimeBand, Timeline, draw_timeline, timeline_svg
from voxelocity_observe.monitor.columns import Columns, Phase, phases_of, stretches_of
from voxelocity_observe.monitor.files import PAGE, PICTURE, read_monitor
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.summary import (
    cards,
    device_table,
    ended_text,
    phase_table,
    rank_table,
    sentence,
    title_of,
)
from voxelocity_observe.monitor.timelines import gpu_timelines, host_timelines, rank_timelines

_ROW_INCH = 2.0


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
            Section(title="Ranks", blocks=_ranks(columns, stretches)),
            Section(title="GPU", blocks=_gpus(columns, stretches)),
            Section(
                title="What was not measured",
                blocks=[
                    Lines(lines=record.missing)
                    if record.missing
                    else Text(text="Everything requested was measured.", is_hint=True)
                ],
            ),
            Section(title="Own cost and machine", blocks=[*_own_cost(record), *machine]),
            Section(title="The command", blocks=[Code(text=shlex.join(record.command))] if record.command else []),
        ],
        footer="Made from the samples in the folder of the record. Rates are means over the time since the previous "
        "sample.",
    )


def _phases(columns: Columns, phases: Sequence[Phase], stretches: Sequence[TimeBand]) -> list[Block]:
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
            text=f"{ranks}A nested phase counts for both phases, and the inner one is shown. Means are over the "
            "samples in a phase; in short phases with few samples, they are rough. The charts below show the "
            "colors behind their lines.",
            is_hint=True,
        ),
    ]


def _ranks(columns: Columns, stretches: Sequence[TimeBand]) -> list[Block]:
    charts = [_chart(timeline, stretches) for timeline in rank_timelines(columns)]
    return [Pair(blocks=charts), rank_table(columns).without_caption()] if charts else []


def _gpus(columns: Columns, stretches: Sequence[TimeBand]) -> list[Block]:
    charts = [_chart(timeline, stretches) for timeline in gpu_timelines(columns)]
    devices = [device_table(columns).without_caption()] if columns.devices else []
    return [*([Pair(blocks=charts)] if charts else []), *devices]


def _status(record: MonitorRecord) -> str:
    if not record.command:
        return ""
    if record.status is None:
        return "unfinished"
    return "finished" if record.status == 0 else ended_text(record).removeprefix("the command ")


def _chart(timeline: Timeline, stretches: Sequence[TimeBand]) -> Chart:
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


def _strip(stretches: Sequence[TimeBand], until_s: float) -> list[BarPart]:
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


def render_monitor_png(record: MonitorRecord, path: str | Path) -> Path:
    """The path, which now holds a picture of all timelines of the record; it is replaced in one move.

    About 0.15 s of one core per chart, and 0.5 s for the first picture of a process.

    Raises:
        OutputError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    columns = Columns(record)
    phases = phases_of(record.phases)
    stretches = stretches_of(phases, columns.until_s) if phases else []
    empty = Timeline(key="empty", title="No sample was taken", y_label="", lines=[], until_s=columns.until_s)
    timelines = [*host_timelines(columns), *rank_timelines(columns), *gpu_timelines(columns)] or [empty]
    title = joined([title_of(record), duration_text(record.seconds), ended_text(record)])
    figure = Figure(figsize=(10.0, 0.6 + _ROW_INCH * len(timelines)), layout="constrained", dpi=110)
    figure.suptitle(literally(title), fontsize=11, color=LIGHT_COLORS["chart-ink"])
    axes_of = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for axes, timeline in zip(axes_of, timelines, strict=True):
        draw_timeline(axes, timeline, stretches, colors=LIGHT_COLORS)
        axes.set_title(timeline.title, loc="left", fontsize=10, color=LIGHT_COLORS["chart-ink"])
        handles, names = axes.get_legend_handles_labels()
        names = [literally(name) for name in names]
        if handles:
            axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9,
                        labelcolor=LIGHT_COLORS["chart-ink"])  # fmt: skip
        if axes is not axes_of[-1]:
            axes.set_xlabel("")
    if phases:
        from matplotlib.patches import Patch

        seen = {stretch.name for stretch in stretches}
        patches = [
            Patch(facecolor=LIGHT_COLORS.get(p.color, p.color), alpha=0.35, label=literally(p.name))
            for p in phases
            if p.name in seen
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                      labelcolor=LIGHT_COLORS["chart-ink"])  # fmt: skip
    return write_png(figure, path)


def draw_record(record: MonitorRecord, folder: Path) -> Path:
    """The page in the folder, with the picture next to it.

    Raises:
        OutputError: one of them cannot be written.
    """
    render_monitor_png(record, folder / PICTURE)
    return render_monitor_page(record, folder / PAGE)


def draw_again(folder: Path, page: Path | None = None) -> Path:
    """The page of the record in a folder; if `page` is not given, in the folder, with the picture.

    Raises:
        InputError: the folder holds no record.
        OutputError: page or picture cannot be written.
    """
    record = read_monitor(folder)
    return draw_record(record, folder) if page is None else render_monitor_page(record, page)
