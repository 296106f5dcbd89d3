"""Blocks that only pages of diagnoses have: bars of parts, the steps over time, cards of findings."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.quantities import count_text, duration_text, rate_text
from voxelocity.core.time_parts import TimeShare, part_label
from voxelocity.diagnosis.facts import PARTS, Facts, Step
from voxelocity.diagnosis.render.evidence.section import quantile
from voxelocity.diagnosis.render.part_styles import shown, style_for
from voxelocity.diagnosis.render.wording import faster_text, gain_text, risk_text
from voxelocity.diagnosis.result import Ceiling, Finding
from voxelocity.report.charts import Series, stacked_chart, thinned
from voxelocity.report.document import (
    Block,
    Chart,
    FindingCard,
    LegendEntry,
    Section,
    Text,
    TimeBars,
    bars_on_one_scale,
    time_split,
)

NETWORK = "the step itself"
# More than waiting: where data is made on the same cores, the step itself is slower.
DATA = "what its data adds"
# The axis ends where all but the rarest steps fit, so that one of 30 s does not flatten the others.
_AXIS_QUANTILE = 0.98
_ROOM = 1.15
_LEAST_IN_SECONDS = 0.5


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
    splits = {"Now": [network, *waiting], "Data always there": [network]}
    totals = {"Now": _step_text(ceiling.step_s), "Data always there": _step_text(ceiling.resident_s)}
    factor = ceiling.step_s / max(ceiling.resident_s, 1e-12)
    how = "Estimated from the parts of the counted steps; the experiment was not done."
    if ceiling.basis == "measured":
        how = "Measured: after the counted steps, the program itself continued on batches it already had."
    return Section(
        title="With and without waiting for data",
        blocks=[
            Text(text=f"{_ceiling_words(ceiling, factor, few)} {beside}".rstrip()),
            TimeBars(
                caption="One step, as measured and with its data always there",
                bars=bars_on_one_scale(splits, colors, totals),
                legend=[LegendEntry(name=name, color=color) for name, color in colors.items()],
            ),
            Text(text=how, is_hint=True),
        ],
    )


def _ceiling_words(ceiling: Ceiling, factor: float, few: str) -> str:
    if factor < 1.03:
        return (
            f"With its data always there a step takes as long as it does now ({duration_text(ceiling.step_s)}): "
            "no faster loading can make it shorter."
        )
    return (
        f"If every batch were there when asked for, a step would take {duration_text(ceiling.resident_s)} "
        f"instead of {duration_text(ceiling.step_s)}: {faster_text(factor, saved_share=1.0 - 1.0 / factor)}{few}. "
        "Faster loading cannot bring more than that."
    )


def _step_text(seconds: float) -> str:
    return f"{duration_text(seconds)} a step, {rate_text(1.0 / seconds if seconds else None)} steps/s"


def steps_chart(steps: Sequence[Step]) -> list[Block]:
    """What each counted step took, its parts on top of each other; nothing if there is nothing to draw."""
    names = [name for name in dict.fromkeys([*PARTS, *_others(steps)]) if any(s.parts.get(name) for s in steps)]
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
    num_beyond = sum(one > top_s for one in seconds)
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


def _others(steps: Sequence[Step]) -> list[str]:
    return [name for step in steps for name in step.parts]
