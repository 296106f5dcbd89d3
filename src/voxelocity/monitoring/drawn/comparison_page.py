"""Two records side by side as a document."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.monitoring.drawn.comparison import (
    Figure,
    compare_records,
    comparison_sentence,
    plain_figures,
    setting_text,
)
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.differences import settings_section
from voxelocity.report.document import Card, Document, Section, Table, Text


def monitor_comparison_document(a: MonitorRecord, b: MonitorRecord) -> Document:
    """What the machine did while `a`, before, and `b`, after, were recorded."""
    found = compare_records(a, b)
    rows = [(key, *(setting_text(value, key) for value in values)) for key, values in found.settings.items()]
    return Document(
        kind="monitor comparison",
        title=found.titles[1] if found.titles[0] == found.titles[1] else " → ".join(found.titles),
        verdict=comparison_sentence(found),
        notices=found.notices,
        cards=[_card(figure) for figure in found.figures if figure.key in _CARDS],
        sections=[
            Section(
                title="The whole time",
                blocks=[
                    _table("Of the whole time", found.figures, hides_caption=True),
                    Text(
                        text="Cores and GPUs busy are means over time, memory is the highest of any sample. A record "
                        "has no steps and no accuracy: compare two runs or two diagnoses to learn whether the training "
                        "became faster.",
                        is_hint=True,
                    ),
                ],
            ),
            Section(title="Phases", blocks=[_table(phase.name, phase.figures) for phase in found.phases]),
            settings_section(rows, ("Before", "After"), found.num_equal),
        ],
        footer="Made from the samples in both folders.",
        values={
            "figures": plain_figures(found.figures),
            "phases": {phase.name: plain_figures(phase.figures) for phase in found.phases},
            "settings": {key: {"before": old, "after": new} for key, (old, new) in found.settings.items()},
        },
    )


def _table(caption: str, figures: Sequence[Figure], *, hides_caption: bool = False) -> Table:
    rows = [figure.row for figure in figures]
    return Table(caption=caption, heads=("", "Before", "After"), rows=rows, hides_caption=hides_caption)


_CARDS = ("seconds", "cpu_busy_share", "program_memory_peak_bytes", "gpu_busy_share", "gpu_memory_peak_bytes")


def _card(figure: Figure) -> Card:
    name, before, after = figure.row
    return Card(name=name, value=after, note=f"{before} before")
