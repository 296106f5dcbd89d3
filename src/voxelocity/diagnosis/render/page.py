"""The page of one diagnosis: a single file that works offline and runs no script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxelocity.core.quantities import NOT_AVAILABLE, count_text, duration_text, rate_text, share_text
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.render.evidence import evidence_sections
from voxelocity.diagnosis.render.pieces import ceiling_section, finding_card, split_bar, steps_chart
from voxelocity.diagnosis.render.wording import (
    NOT_WRITTEN,
    beside_ceiling_text,
    few_steps_text,
    gain_text,
    pace,
    per_second_text,
    percent_text,
    refused_texts,
    title_text,
)
from voxelocity.diagnosis.result import Diagnosis
from voxelocity.report.document import (
    Block,
    Card,
    Code,
    Document,
    FindingCard,
    Folded,
    Lines,
    Links,
    Section,
    Text,
)
from voxelocity.report.html import write_page

_NUM_FIRST = 3
_HOW_TO_OPEN = (
    "`{trace}`, relative to the folder of this page, shows what ran when. Open `ui.perfetto.dev` in a browser and "
    "choose “Open trace file”; the file stays on your machine. W and S zoom, A and D move."
)


def render_diagnosis_page(diagnosis: Diagnosis, path: str | Path, *, trace: str = "") -> Path:
    """The path, which now holds the diagnosis as one HTML file. The same diagnosis gives the same bytes.

    Args:
        diagnosis: all that is shown.
        path: file to write; it is replaced atomically.
        trace: file for Perfetto, relative to the page's folder; the page says how to open it.

    Raises:
        OutputError: the file cannot be written.
    """
    return write_page(diagnosis_document(diagnosis, trace=trace), path)


def diagnosis_document(diagnosis: Diagnosis, *, trace: str = "") -> Document:
    """The diagnosis with its evidence; `trace` as in `render_diagnosis_page`."""
    facts = diagnosis.facts
    findings = [finding_card(finding, number, facts) for number, finding in enumerate(diagnosis.findings, start=1)]
    causes = [card for card, one in zip(findings, diagnosis.findings, strict=True) if one.is_cause]
    ceiling = []
    if diagnosis.ceiling is not None:
        few, beside = few_steps_text(facts), beside_ceiling_text(diagnosis.split)
        ceiling = [ceiling_section(diagnosis.ceiling, few=few, beside=beside)]
    refused = refused_texts(facts)
    command = f"voxelocity diagnose -- {shlex.join(facts.command)}" if facts.command else ""
    return Document(
        kind="diagnosis",
        title=title_text(facts),
        verdict=diagnosis.verdict,
        lead=_lead(causes),
        cards=_cards(diagnosis),
        sections=[
            Section(title="Where the time went", blocks=[split_bar(diagnosis.split)] if diagnosis.split else []),
            *ceiling,
            Section(title="What to change", blocks=_to_change(diagnosis, causes, findings)),
            Section(
                title="What was not measured",
                blocks=[
                    Lines(lines=diagnosis.not_measured)
                    if diagnosis.not_measured
                    else Text(text="Everything that can be measured here was.", is_hint=True)
                ],
            ),
            Section(title=NOT_WRITTEN, blocks=[Lines(lines=refused, are_code=True)] if refused else []),
            *(_with_chart(section, facts) for section in evidence_sections(diagnosis)),
            Section(title="The trace", blocks=[Text(text=_HOW_TO_OPEN.format(trace=trace))] if trace else []),
            Section(title="Do it again", blocks=[Code(text=command)] if command else []),
        ],
        footer="Made from `diagnosis.json`; `voxelocity diagnose FOLDER` renders it again.",
    )


def _lead(causes: Sequence[FindingCard]) -> list[Block]:
    if not causes:
        return []
    entries = [
        (card.key, card.title, f"{card.gain}{', changes results' if card.changes_results else ''}")
        for card in causes[:_NUM_FIRST]
    ]
    return [Links(title="Change first:" if len(causes) > 1 else "What to change:", entries=entries)]


def _to_change(diagnosis: Diagnosis, causes: Sequence[FindingCard], findings: Sequence[FindingCard]) -> list[Block]:
    blocks = list[Block](causes)
    if not causes and diagnosis.split:
        blocks = [Text(text="Nothing was found that holds this program back.")]
    elif not causes:
        blocks = [Text(text="No training was seen, so there is nothing to judge.")]
    others = [card for card in findings if card not in causes]
    if others:
        title = f"Worth knowing, but not holding it back now ({len(others)})"
        blocks.append(Folded(title=title, blocks=others, is_open=not causes))
    return blocks


def _with_chart(section: Section, facts: Facts) -> Section:
    """The section on steps with their chart; the others unchanged."""
    if section.key != "steps":
        return section
    hints = [block for block in section.blocks if isinstance(block, Text)]
    tables = [block for block in section.blocks if not isinstance(block, Text)]
    return replace(section, blocks=[*hints, *steps_chart(facts.counted), *tables])


def _cards(diagnosis: Diagnosis) -> list[Card]:
    """Key figures; none where nothing was seen."""
    seen = pace(diagnosis)
    if seen.steps_per_s is None:
        return []
    waiting = next((share.share for share in diagnosis.split if share.name == "waiting for data"), 0.0)
    causes = diagnosis.causes
    first = f"the first: {gain_text(causes[0], diagnosis.facts)}" if causes else "none that costs time now"
    cost = NOT_AVAILABLE if diagnosis.own_share is None else percent_text(diagnosis.own_share)
    images = "validation included"
    if seen.images_per_s is not None:
        images = f"{per_second_text(seen.images_per_s, 'images')}, {images}"
    return [
        Card(name="Steps per second", value=rate_text(seen.steps_per_s), note=images),
        Card(
            name="A step",
            value=duration_text(seen.step_s),
            note=f"median of {count_text(seen.num_steps, 'counted step')}",
        ),
        Card(name="Waiting for data", value=share_text(waiting), note=f"of {duration_text(seen.watched_s)} watched"),
        Card(name="Causes found", value=f"{len(causes)}", note=first),
        Card(name="Own cost", value=cost, note="of the watched time went into watching"),
    ]
