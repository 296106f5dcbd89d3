"""The page of one diagnosis: a single file that works offline and runs no script."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxelocity_observe.core.quantities import NOT_AVAILABLE, count_text, duration_text, rate_text, share_text
from voxelocity_observe.core.time_parts import TimeShare, part_label
from voxelocity_observe.diagnose.facts import PARTS, Facts, Step
from voxelocity_observe.diagnose.render.evidence import evidence_sections
from voxelocity_observe.diagnose.render.wording import (
    NOT_WRITTEN,
    beside_ceiling_text,
    faster_text,
    few_steps_text,
    gain_text,
    pace,
    per_second_text,
    percent_text,
    quantile,
    refused_texts,
    risk_text,
    shown,
    style_for,
    title_text,
)
from voxelocity_observe.diagnose.result import Ceiling, Diagnosis, Finding
from voxelocity_observe.document.blocks import (
    Block,
    Card,
    Chart,
    Code,
    Document,
    FindingCard,
    Folded,
    LegendEntry,
    Lines,
    Links,
    Section,
    Text,
    TimeBars,
    bars_on_one_scale,
    time_split,
)
from voxelocity_observe.document.charts import Series, stacked_chart, thinned
from voxelocity_observe.document.html import write_page

_NUM_FIRST = 3
_HOW_TO_OPEN = (
    "`{trace}`, relative to the folder of this page, shows what ran when. Open `ui.perfetto.dev` in a browser and "
    "choose “Open trace file”; the file stays on your machine. W and S zoom, A and D move."
)

NETWORK = "the step itself"
# More than waiting: where data is made on the same cores, the step itself is slower.
DATA = "what its data adds"
# The axis ends where all but the rarest steps fit, so that one of 30 s does not flatten the others.
_AXIS_QUANTILE = 0.98
_ROOM = 1.15
_LEAST_IN_SECONDS = 0.5


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
    causes = [card for card, finding in zip(findings, diagnosis.findings, strict=True) if finding.is_cause]
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
                    else Text(text="Everything that can be measured here was measured.", is_hint=True)
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
        blocks = [Text(text="No training was recorded, so there is nothing to analyze.")]
    others = [card for card in findings if card not in causes]
    if others:
        title = f"Worth knowing, but not a bottleneck now ({len(others)})"
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
        Card(name="Own cost", value=cost, note="of the watched time was spent on watching"),
    ]


def split_bar(split: Sequence[TimeShare]) -> TimeBars:
    """The watched time by part."""
    parts = shown(split)
    colors = {part.name: style_for(part.name).css for part in parts}
    return time_split("The watched time by part", parts, colors=colors)


def ceiling_section(ceiling: Ceiling, *, few: str = "", beside: str = "") -> Section:
    """One step now and with its data always there, on one scale.

    Args:
        ceiling: of a step.
        few: words to add where it rests on few steps.
        beside: a sentence on what it leaves out.
    """
    waited_s = max(ceiling.step_s - ceiling.resident_s, 0.0)
    network = TimeShare(name=NETWORK, seconds=ceiling.resident_s, share=1.0)
    waiting = [TimeShare(name=DATA, seconds=waited_s, share=1.0)] if waited_s > 0.0 else []
    colors = {NETWORK: style_for("forward").css, **({DATA: style_for("wait").css} if waiting else {})}
    splits = {"Now": [network, *waiting], "Data always available": [network]}
    totals = {"Now": _step_text(ceiling.step_s), "Data always available": _step_text(ceiling.resident_s)}
    factor = ceiling.step_s / max(ceiling.resident_s, 1e-12)
    how = "Estimated from the parts of the counted steps; the experiment was not done."
    if ceiling.basis == "measured":
        how = "Measured: after the counted steps, the program continued on batches that were already in memory."
    return Section(
        title="With and without waiting for data",
        blocks=[
            Text(text=f"{_ceiling_words(ceiling, factor, few)} {beside}".rstrip()),
            TimeBars(
                caption="One step, as measured and with its data always available",
                bars=bars_on_one_scale(splits, colors, totals),
                legend=[LegendEntry(name=name, color=color) for name, color in colors.items()],
            ),
            Text(text=how, is_hint=True),
        ],
    )


def _ceiling_words(ceiling: Ceiling, factor: float, few: str) -> str:
    if factor < 1.03:
        return (
            f"With its data always available, a step takes as long as now ({duration_text(ceiling.step_s)}): "
            "no faster loading can make it shorter."
        )
    return (
        f"If every batch were available immediately, a step would take {duration_text(ceiling.resident_s)} "
        f"instead of {duration_text(ceiling.step_s)}: {faster_text(factor, saved_share=1.0 - 1.0 / factor)}{few}. "
        "Faster loading cannot gain more than that."
    )


def _step_text(seconds: float) -> str:
    return f"{duration_text(seconds)} a step, {rate_text(1.0 / seconds if seconds else None)} steps/s"


def steps_chart(steps: Sequence[Step]) -> list[Block]:
    """What each counted step took, its parts on top of each other; nothing if there is nothing to draw."""
    # A number that does not exist was written as null, and has no column.
    steps = [step for step in steps if math.isfinite(step.seconds) and all(map(math.isfinite, step.parts.values()))]
    known = dict.fromkeys([*PARTS, *(name for step in steps for name in step.parts)])
    names = [name for name in known if any(step.parts.get(name) for step in steps)]
    if len(steps) < 2 or not names:
        return []
    seconds = [step.seconds for step in steps]
    top_s = quantile(seconds, _AXIS_QUANTILE) * _ROOM
    unit_s, unit = (1e-3, "ms") if top_s < _LEAST_IN_SECONDS else (1.0, "s")
    layers = [
        Series(
            points=thinned([(n, step.parts.get(name, 0.0) / unit_s) for n, step in enumerate(steps, start=1)]),
            color=style_for(name).color,
            name=part_label(name),
        )
        for name in names
    ]
    num_beyond = sum(step_s > top_s for step_s in seconds)
    beyond = f"; {num_beyond:,} of {len(steps):,} {'reaches' if num_beyond == 1 else 'reach'} beyond the top"
    middle = duration_text(quantile(seconds, 0.5))
    svg = stacked_chart(
        "steps", layers, x_label="counted step", y_label=f"time ({unit})", y_limit=top_s / unit_s or None
    )
    return [
        Chart(
            title=f"Time of each counted step{beyond if num_beyond else ''}",
            svg=svg,
            alt=f"Stacked columns: {count_text(len(steps), 'counted step')}, median {middle}, in {len(names)} parts.",
            legend=[LegendEntry(name=layer.name, color=f"var(--{layer.color})") for layer in layers],
        )
    ]


def finding_card(finding: Finding, number: int, facts: Facts) -> FindingCard:
    """A finding as a card; `number` makes its key unique."""
    return FindingCard(
        key=f"finding-{number}",
        code=finding.code,
        title=finding.title,
        gain=gain_text(finding, facts),
        risk=risk_text(finding),
        changes_results=finding.risk == "changes results",
        cause=finding.cause,
        evidence=finding.evidence,
        change=finding.change,
        where=finding.where,
    )
