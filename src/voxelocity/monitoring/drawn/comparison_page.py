"""The page of two records side by side: a single file that works offline and runs no script."""

from __future__ import annotations

from pathlib import Path

from voxelocity.core.whole_file import write_whole
from voxelocity.monitoring.drawn.comparison import Figure, compare_records, comparison_sentence, setting_text
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.views import Card, Table, render

_HEADS = ("", "Before", "After")


def render_monitor_comparison(a: MonitorRecord, b: MonitorRecord, path: str | Path) -> Path:
    """The path, which now holds the comparison of `a`, before, and `b`, after, as one HTML file.

    Raises:
        OutputError: the file cannot be written.
    """
    found = compare_records(a, b)
    rows = [(key, *(setting_text(value, key) for value in values)) for key, values in found.settings.items()]
    context = {
        "title": found.titles[1] if found.titles[0] == found.titles[1] else " → ".join(found.titles),
        "sentence": comparison_sentence(found),
        "notices": found.notices,
        "cards": [_card(figure) for figure in found.figures if figure.key in _CARDS],
        "figures": Table(caption="Of the whole time", heads=_HEADS, rows=[figure.row for figure in found.figures]),
        "phases": [
            Table(caption=phase.name, heads=_HEADS, rows=[figure.row for figure in phase.figures])
            for phase in found.phases
        ],
        "settings": Table(
            caption="What differs", heads=("Key", "Before", "After"), rows=rows, text_columns=frozenset({1, 2})
        ),
    }
    return write_whole(path, render("monitor_comparison.html.j2", **context))


_CARDS = ("seconds", "cpu_busy_share", "program_memory_peak_bytes", "gpu_busy_share", "gpu_memory_peak_bytes")


def _card(figure: Figure) -> Card:
    name, before, after = figure.row
    return Card(name=name, value=after, note=f"{before} before")
