"""Steps, and what ran between them."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.quantities import duration_text, share_text
from voxelocity.core.time_parts import part_label
from voxelocity.diagnosis.facts import PARTS, Facts, Pass, Step
from voxelocity.diagnosis.render.evidence.section import quantile, section
from voxelocity.diagnosis.render.wording import own_steps_text
from voxelocity.report.document import Section, Table

_PHASES = {
    "warm-up": "not counted: warm-up",
    "watched": "counted",
    "profiled": "slowed down by the profiler",
    "resident": "on batches that were there",
    "unchanged": "unchanged, between these",
    "refilled": "not counted: on batches made ahead",
}


def steps_section(facts: Facts) -> Section | None:
    """Seconds of a step, and of its parts as device and host saw them."""
    if not facts.steps:
        return None
    tables = [_by_phase(facts.steps)]
    if facts.counted:
        tables.append(_by_part(facts.counted, has_device=facts.settings is not None and facts.settings.device != "cpu"))
    return section(
        "steps",
        "Steps",
        tables,
        hint="From the end of one optimizer step to the end of the next, validation and saving left out. "
        + own_steps_text(facts),
    )


def _by_phase(steps: Sequence[Step]) -> Table:
    rows = []
    for phase, words in _PHASES.items():
        seconds = [step.seconds for step in steps if step.phase == phase]
        if seconds:
            low, middle, high = (duration_text(quantile(seconds, share)) for share in (0.05, 0.5, 0.95))
            rows.append((words, f"{len(seconds):,}", middle, f"{low} to {high}", duration_text(sum(seconds))))
    heads = ("Steps", "Number", "Median", "90 % within", "Sum")
    return Table(caption="Time of a step", heads=heads, rows=rows)


def _by_part(steps: Sequence[Step], *, has_device: bool) -> Table:
    whole_s = sum(step.seconds for step in steps) or 1.0
    names = dict.fromkeys([*PARTS, *(name for step in steps for name in step.parts)])
    rows, shares = [], []
    for name in names:
        seconds = [step.parts.get(name, 0.0) for step in steps]
        if not any(seconds):
            continue
        share = sum(seconds) / whole_s
        row = [part_label(name), duration_text(quantile(seconds, 0.5)), duration_text(quantile(seconds, 0.95))]
        if has_device:
            row.append(duration_text(quantile([step.host_parts.get(name, 0.0) for step in steps], 0.5)))
        rows.append([*row, share_text(share)])
        shares.append(share)
    heads = ["Part", "Median", "95 % below", *(["Median on the host"] if has_device else []), "Share"]
    return Table(caption="Parts of a counted step", heads=heads, rows=rows, shares=shares)


def passes_section(facts: Facts) -> Section | None:
    """Validation, saving and epoch starts, summed by kind and place."""
    if not facts.passes:
        return None
    places = dict.fromkeys((one.kind, one.where) for one in facts.passes)
    rows = [_pass_row([one for one in facts.passes if (one.kind, one.where) == place]) for place in places]
    heads = ("Kind", "Where", "Times", "Sum", "Longest", "Forward passes", "Most frequent shape", "Gradients")
    # An epoch's start or a saved file has no batches; without validation those columns are empty.
    kept = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    words = ("Where", "Most frequent shape", "Gradients")
    table = Table(
        caption="Passes that train nothing",
        heads=[heads[column] for column in kept],
        rows=[tuple(row[column] for column in kept) for row in rows],
        text_columns=frozenset(place for place, column in enumerate(kept) if heads[column] in words),
    )
    return section("passes", "Between the steps", [table])


def _pass_row(passes: Sequence[Pass]) -> tuple[str, ...]:
    first = passes[0]
    num_forwards = sum(one.num_forwards for one in passes)
    shapes = [shape for one in passes for shape, _ in one.batch_shapes[:1]]
    return (
        first.kind,
        first.where,
        f"{len(passes):,}",
        duration_text(sum(one.seconds for one in passes)),
        duration_text(max(one.seconds for one in passes)),
        f"{num_forwards:,}" if num_forwards else "",
        " × ".join(map(str, shapes[0])) if shapes else "",
        "recorded" if any(one.has_gradients for one in passes) else "",
    )
