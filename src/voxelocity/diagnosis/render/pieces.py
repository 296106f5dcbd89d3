"""The pieces that pages of diagnoses draw: bars of parts, lanes to compare, the steps over time, cards of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxelocity.core.quantities import count_text, duration_text, rate_text, share_text
from voxelocity.core.time_parts import TimeShare, part_label
from voxelocity.diagnosis.facts import PARTS, Facts, Step
from voxelocity.diagnosis.render.evidence.section import quantile
from voxelocity.diagnosis.render.part_styles import shown, style_for
from voxelocity.diagnosis.render.wording import faster_text, gain_text, risk_text
from voxelocity.diagnosis.result import Ceiling, Finding
from voxelocity.report.charts import Series, stacked_chart, thinned
from voxelocity.report.views import BarPart, LegendEntry, Table

NETWORK = "the step itself"
# More than waiting: where data is made on the same cores, the step itself is slower.
DATA = "what its data adds"
# The axis ends where all but the rarest steps fit, so that one of 30 s does not flatten the others.
_AXIS_QUANTILE = 0.98
_ROOM = 1.15
_LEAST_IN_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One of several bars on one scale, with a name and a figure."""

    name: str
    text: str
    parts: Sequence[BarPart]


@dataclass(frozen=True, kw_only=True)
class CeilingView:
    """The experiment with and without data, for a page."""

    words: str
    lanes: Sequence[Lane]
    legend: Sequence[LegendEntry]
    how: str


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """A finding as a card."""

    key: str
    code: str
    title: str
    gain: str
    risk: str
    changes_results: bool
    cause: str
    evidence: Sequence[str]
    change: str
    where: str


def split_bar(split: Sequence[TimeShare]) -> list[BarPart]:
    """The parts of a split as one bar, each as wide as its share."""
    parts, start = list[BarPart](), 0.0
    for share in shown(split):
        width = share.share * 100.0
        parts.append(BarPart(name=share.name, start=start, width=width, style=style_for(share.name).style))
        start += width
    return parts


def split_table(split: Sequence[TimeShare]) -> Table:
    """Seconds and shares of a split, with their sum in the last row."""
    parts = shown(split)
    rows = [(part.name, duration_text(part.seconds), share_text(part.share)) for part in parts]
    whole = ("sum", duration_text(sum(p.seconds for p in parts)), share_text(sum(p.share for p in parts)))
    return Table(caption="The watched time by part", heads=("Part", "Time", "Share"), rows=[*rows, whole])


def ceiling_view(ceiling: Ceiling, *, few: str = "", beside: str = "") -> CeilingView:
    """One step now and with its data always there, on one scale.

    Args:
        ceiling: of a step.
        few: words to add where it rests on few steps.
        beside: a sentence on what it leaves out.
    """
    longest_s = max(ceiling.step_s, ceiling.resident_s, 1e-12)
    waited_s = max(ceiling.step_s - ceiling.resident_s, 0.0)
    own, waiting = style_for("forward").style, style_for("wait").style
    own_width, wait_width = ceiling.resident_s / longest_s * 100.0, waited_s / longest_s * 100.0
    network = BarPart(name=NETWORK, start=0.0, width=own_width, style=own)
    wait = BarPart(name=DATA, start=own_width, width=wait_width, style=waiting)
    as_it_is = [network, *([wait] if waited_s > 0.0 else [])]
    factor = ceiling.step_s / max(ceiling.resident_s, 1e-12)
    entries = [(NETWORK, own), *([(DATA, waiting)] if waited_s > 0.0 else [])]
    return CeilingView(
        words=f"{_ceiling_words(ceiling, factor, few)} {beside}".rstrip(),
        lanes=[
            Lane(name="Now", text=_step_text(ceiling.step_s), parts=as_it_is),
            Lane(name="Data always there", text=_step_text(ceiling.resident_s), parts=[network]),
        ],
        legend=[LegendEntry(name=name, color=f"var(--{style})") for name, style in entries],
        how="Measured: after the counted steps, the program itself continued on batches it already had."
        if ceiling.basis == "measured"
        else "Estimated from the parts of the counted steps; the experiment was not done.",
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


@dataclass(frozen=True, kw_only=True)
class StepsView:
    """The counted steps in order, for a page; `svg` is empty where there is nothing to draw."""

    svg: str = ""
    title: str = ""
    alt: str = ""
    legend: Sequence[LegendEntry] = ()


def steps_view(steps: Sequence[Step]) -> StepsView:
    """What each counted step took, its parts on top of each other."""
    names = [name for name in dict.fromkeys([*PARTS, *_others(steps)]) if any(s.parts.get(name) for s in steps)]
    if len(steps) < 2 or not names:
        return StepsView()
    seconds = [step.seconds for step in steps]
    top_s = quantile(seconds, _AXIS_QUANTILE) * _ROOM
    unit_s, unit = (1e-3, "ms") if top_s < _LEAST_IN_SECONDS else (1.0, "s")
    layers = [
        Series(
            points=thinned([(n, step.parts.get(name, 0.0) / unit_s) for n, step in enumerate(steps, start=1)]),
            color=style_for(name).style,
            name=part_label(name),
        )
        for name in names
    ]
    num_beyond = sum(one > top_s for one in seconds)
    beyond = f"; {num_beyond:,} of {len(steps):,} {'reaches' if num_beyond == 1 else 'reach'} beyond the top"
    middle = duration_text(quantile(seconds, 0.5))
    return StepsView(
        svg=stacked_chart(
            "steps", layers, x_label="counted step", y_label=f"time ({unit})", y_limit=top_s / unit_s or None
        ),
        title=f"Time of each counted step{beyond if num_beyond else ''}",
        alt=f"Stacked columns: {count_text(len(steps), 'counted step')}, median {middle}, in {len(names)} parts.",
        legend=[LegendEntry(name=layer.name, color=f"var(--{layer.color})") for layer in layers],
    )


def finding_view(finding: Finding, number: int, facts: Facts) -> FindingView:
    """A finding as a card; `number` makes its key unique."""
    return FindingView(
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
