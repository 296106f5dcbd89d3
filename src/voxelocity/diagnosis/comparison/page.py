"""The before-and-after page of two diagnoses: a single file that works offline and runs no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxelocity.core.quantities import duration_text, factor_text, rate_text, value_text
from voxelocity.core.time_parts import TimeShare
from voxelocity.core.whole_file import write_whole
from voxelocity.diagnosis.comparison.compare import (
    AFTER,
    BEFORE,
    DiagnosisComparison,
    compare_diagnoses,
)
from voxelocity.diagnosis.comparison.text import agreement_text, comparison_verdict, part_rows
from voxelocity.diagnosis.render.part_styles import style_for
from voxelocity.diagnosis.render.pieces import Lane, finding_view, split_bar
from voxelocity.diagnosis.render.wording import title_text
from voxelocity.diagnosis.result import Diagnosis
from voxelocity.report.views import Card, LegendEntry, Table, render


def render_diagnosis_comparison(a: Diagnosis, b: Diagnosis, path: str | Path) -> Path:
    """The path, which now holds the comparison of `a`, before, with `b`, after, as one HTML file.

    Raises:
        OutputError: the file cannot be written.
    """
    found = compare_diagnoses(a, b)
    parts = part_rows(found)
    context = {
        "title": title_text(b.facts),
        "verdict": comparison_verdict(found),
        "notices": found.notices,
        "cards": _cards(found),
        "lanes": _lanes(found),
        "legend": [LegendEntry(name=name, color=f"var(--{style_for(name).style})") for name, *_ in parts[:-1]],
        "parts_table": Table(
            caption="What a step costs by part", heads=("Part", BEFORE.capitalize(), AFTER.capitalize()), rows=parts
        ),
        "gone": _gone_table(found),
        "new": [finding_view(finding, number, b.facts) for number, finding in enumerate(found.new, start=1)],
        "still": [
            finding_view(finding, number, b.facts)
            for number, finding in enumerate(found.still, start=len(found.new) + 1)
        ],
        "settings": Table(
            caption="Settings that differ",
            heads=("Setting", BEFORE.capitalize(), AFTER.capitalize()),
            rows=[(key, *(value_text(value, key) for value in values)) for key, values in found.settings.items()],
            text_columns=frozenset({1, 2}),
        ),
        "num_equal": found.num_equal,
        "verdicts": [(BEFORE.capitalize(), a.verdict), (AFTER.capitalize(), b.verdict)],
    }
    return write_whole(path, render("diagnosis_comparison.html.j2", **context))


def _cards(found: DiagnosisComparison) -> list[Card]:
    before, after = found.before, found.after
    images = []
    if before.images_per_s is not None and after.images_per_s is not None:
        texts = (rate_text(before.images_per_s), rate_text(after.images_per_s))
        images = [Card(name="Images per second", value=texts[1], note=f"{texts[0]} before")]
    return [
        Card(
            name="Times as fast", value=factor_text(found.achieved), note="after the change, validating equally often"
        ),
        Card(name="Predicted", value=factor_text(found.predicted), note="by the findings that are gone, together"),
        Card(
            name="Steps per second",
            value=rate_text(after.steps_per_s),
            note=f"{rate_text(before.steps_per_s)} before",
        ),
        *images,
        Card(name="Median step", value=duration_text(after.step_s), note=f"{duration_text(before.step_s)} before"),
    ]


def _lanes(found: DiagnosisComparison) -> list[Lane]:
    """What a step costs by part, before and after, on one scale."""
    both = [(BEFORE.capitalize(), found.costs_before), (AFTER.capitalize(), found.costs_after)]
    longest_s = max(sum(costs.values()) for _, costs in both)
    lanes = []
    for label, costs in both:
        whole_s = sum(costs.values())
        split = [TimeShare(name=name, seconds=seconds, share=seconds / longest_s) for name, seconds in costs.items()]
        if whole_s > 0.0:
            lanes.append(Lane(name=label, text=f"{duration_text(whole_s)} a step", parts=split_bar(split)))
    return lanes


def _gone_table(found: DiagnosisComparison) -> Table:
    rows: list[tuple[Any, ...]] = [
        (
            one.finding.code,
            one.finding.title,
            factor_text(one.predicted),
            factor_text(one.achieved),
            agreement_text(one) if one.agreement is None else f"{one.agreement:.2f}",
        )
        for one in found.gone
    ]
    heads = ("Code", "Cause", "Predicted", "Achieved", "Predicted / achieved")
    return Table(
        caption="Causes that are gone",
        heads=heads,
        rows=rows,
        text_columns=frozenset({1}),
        marked_columns=frozenset({3}),
    )
