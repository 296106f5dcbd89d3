"""The picture of a monitor's record: its charts stacked on one time axis, as PNG."""

from __future__ import annotations

import io
from pathlib import Path

from voxelocity.core.quantities import duration_text, joined
from voxelocity.core.whole_file import write_whole
from voxelocity.monitoring.drawn.columns import Columns
from voxelocity.monitoring.drawn.phases import phases_of, stretches_of
from voxelocity.monitoring.drawn.summary import ended_text, title_of
from voxelocity.monitoring.drawn.timelines import gpu_timelines, host_timelines
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.palette import CLASS_COLORS, css_color
from voxelocity.report.timeline import Timeline, draw_timeline

# The light colors of style.css.
_COLORS = {
    "chart-ink": "#4a5560",
    "chart-grid": "#dfe3e7",
    "chart-target": "#9a5b00",
    "accent": "#0f6f6a",
    **{f"class-{index}": css_color(index) for index in range(1, len(CLASS_COLORS) + 1)},
    **dict(
        zip(
            (f"part-{index}" for index in range(1, 9)),
            ("#0f6f6a", "#5fa8a3", "#35607f", "#8fb3cc", "#a8843c", "#d8c28c", "#7c6a94", "#bfb2cf"),
            strict=True,
        )
    ),
    "part-other": "#c9d0d6",
}
_ROW_INCH = 2.0


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
    timelines = [*host_timelines(columns), *gpu_timelines(columns)] or [_empty(columns)]
    figure = Figure(figsize=(10.0, 0.6 + _ROW_INCH * len(timelines)), layout="constrained", dpi=110)
    figure.suptitle(_title(record), fontsize=11, color=_COLORS["chart-ink"])
    axes_of = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for axes, timeline in zip(axes_of, timelines, strict=True):
        draw_timeline(axes, timeline, stretches, colors=_COLORS)
        axes.set_title(timeline.title, loc="left", fontsize=10, color=_COLORS["chart-ink"])
        handles, names = axes.get_legend_handles_labels()
        names = [_literally(name) for name in names]
        if handles:
            axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9,
                        labelcolor=_COLORS["chart-ink"])  # fmt: skip
        if axes is not axes_of[-1]:
            axes.set_xlabel("")
    if phases:
        from matplotlib.patches import Patch

        seen = {stretch.name for stretch in stretches}
        patches = [
            Patch(facecolor=_COLORS.get(p.color, p.color), alpha=0.35, label=_literally(p.name))
            for p in phases
            if p.name in seen
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                      labelcolor=_COLORS["chart-ink"])  # fmt: skip
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return write_whole(path, buffer.getvalue())


def _title(record: MonitorRecord) -> str:
    return _literally(joined([title_of(record), duration_text(record.seconds), ended_text(record)]))


def _empty(columns: Columns) -> Timeline:
    return Timeline(key="empty", title="No sample was taken", y_label="", lines=[], until_s=columns.until_s)


def _literally(text: str) -> str:
    """The text for Matplotlib, where a dollar sign begins a formula."""
    return text.replace("$", r"\$")
