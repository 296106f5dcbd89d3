"""Two diagnoses of one program, before and after a change, as a document."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text, factor_text, rate_text, value_text
from voxelocity.core.time_parts import TimeShare
from voxelocity.diagnosis.comparison.compare import (
    AFTER,
    BEFORE,
    DiagnosisComparison,
    compare_diagnoses,
)
from voxelocity.diagnosis.comparison.text import agreement_text, comparison_values, comparison_verdict, part_rows
from voxelocity.diagnosis.render.part_styles import style_for
from voxelocity.diagnosis.render.pieces import finding_card
from voxelocity.diagnosis.render.wording import title_text
from voxelocity.diagnosis.result import Diagnosis
from voxelocity.report.differences import settings_section
from voxelocity.report.document import (
    Block,
    Card,
    Document,
    Heading,
    Section,
    Table,
    Text,
    TimeBars,
    bars_on_one_scale,
)

_LABELS = (BEFORE.capitalize(), AFTER.capitalize())


def diagnosis_comparison_document(a: Diagnosis, b: Diagnosis) -> Document:
    """What became of the program between `a`, before, and `b`, after."""
    found = compare_diagnoses(a, b)
    cards = [finding_card(finding, n, b.facts) for n, finding in enumerate([*found.new, *found.still], start=1)]
    rows = [(key, *(value_text(value, key) for value in values)) for key, values in found.settings.items()]
    verdicts = list[Block]()
    for label, one in zip(_LABELS, (a, b), strict=True):
        verdicts += [Heading(text=label), Text(text=one.verdict)]
    return Document(
        kind="diagnosis comparison",
        title=title_text(b.facts),
        verdict=comparison_verdict(found),
        notices=found.notices,
        cards=_cards(found),
        sections=[
            Section(title="What a step costs", blocks=_costs(found)),
            Section(title="What is gone", blocks=_gone(found)),
            Section(title="What is new", blocks=cards[: len(found.new)]),
            Section(title="What is still there", blocks=cards[len(found.new) :]),
            settings_section(rows, _LABELS, found.num_equal),
            Section(title="The two verdicts", blocks=verdicts, is_detail=True),
        ],
        footer="Made from the `diagnosis.json` of both folders.",
        values=comparison_values(found),
    )


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


def _costs(found: DiagnosisComparison) -> list[Block]:
    """What a step costs by part, before and after, on one scale."""
    sides = dict(zip(_LABELS, (found.costs_before, found.costs_after), strict=True))
    splits = {
        label: [TimeShare(name=name, seconds=seconds, share=0.0) for name, seconds in costs.items()]
        for label, costs in sides.items()
        if costs
    }
    if not splits:
        return []
    colors = {part.name: style_for(part.name).css for parts in splits.values() for part in parts}
    totals = {label: f"{duration_text(sum(sides[label].values()))} a step" for label in splits}
    heads, parts = ("Part", *_LABELS), part_rows(found)
    table = Table(
        caption="What a step costs by part",
        heads=heads,
        rows=parts,
        swatches=[colors[name] for name, *_ in parts[:-1]],
        has_total=True,
    )
    hint = "Validation, saving and epoch starts are spread over the steps, on both sides as often as before."
    bars = bars_on_one_scale(splits, colors, totals)
    return [Text(text=hint, is_hint=True), TimeBars(caption="Time of one step by part", bars=bars, table=table)]


def _gone(found: DiagnosisComparison) -> list[Block]:
    if not found.gone:
        return [Text(text="No cause that was found before is gone.")]
    rows = [
        (
            one.finding.code,
            one.finding.title,
            factor_text(one.predicted),
            factor_text(one.achieved),
            agreement_text(one) if one.agreement is None else f"{one.agreement:.2f}",
        )
        for one in found.gone
    ]
    table = Table(
        caption="Causes that are gone",
        heads=("Code", "Cause", "Predicted", "Achieved", "Predicted / achieved"),
        rows=rows,
        text_columns=frozenset({1}),
        marked_columns=frozenset({3}),
        hides_caption=True,
    )
    hint = (
        "Achieved is the gain of the whole program, so it is the same in every row; where several causes are gone, "
        "each contributed a part of it."
    )
    return [table, Text(text=hint, is_hint=True)]
