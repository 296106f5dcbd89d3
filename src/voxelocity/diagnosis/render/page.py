"""The page of one diagnosis: a single file that works offline and runs no script."""

from __future__ import annotations

import shlex
from pathlib import Path

from voxelocity.core.quantities import NOT_AVAILABLE, count_text, duration_text, rate_text, share_text
from voxelocity.core.whole_file import write_whole
from voxelocity.diagnosis.render.evidence import evidence_sections
from voxelocity.diagnosis.render.pieces import ceiling_view, finding_view, split_bar, split_table, steps_view
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
from voxelocity.report.views import Card, render


def render_diagnosis_page(diagnosis: Diagnosis, path: str | Path, *, trace: str = "") -> Path:
    """The path, which now holds the diagnosis as one HTML file. The same diagnosis gives the same bytes.

    Args:
        diagnosis: all that is shown.
        path: file to write; it is replaced atomically.
        trace: file for Perfetto, relative to the page's folder; the page says how to open it.

    Raises:
        OutputError: the file cannot be written.
    """
    facts = diagnosis.facts
    findings = [finding_view(finding, number, facts) for number, finding in enumerate(diagnosis.findings, start=1)]
    context = {
        "title": title_text(facts),
        "verdict": diagnosis.verdict,
        "cards": _cards(diagnosis),
        "split": split_bar(diagnosis.split),
        "split_table": split_table(diagnosis.split),
        "ceiling": None
        if diagnosis.ceiling is None
        else ceiling_view(diagnosis.ceiling, few=few_steps_text(facts), beside=beside_ceiling_text(diagnosis.split)),
        "causes": [view for view, one in zip(findings, diagnosis.findings, strict=True) if one.is_cause],
        "others": [view for view, one in zip(findings, diagnosis.findings, strict=True) if not one.is_cause],
        "not_measured": diagnosis.not_measured,
        "refused_writes": refused_texts(facts),
        "refused_title": NOT_WRITTEN,
        "evidence": evidence_sections(diagnosis),
        "steps": steps_view(facts.counted),
        "trace": trace,
        "command": f"voxelocity diagnose -- {shlex.join(facts.command)}" if facts.command else "",
    }
    return write_whole(path, render("diagnosis.html.j2", **context))


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
