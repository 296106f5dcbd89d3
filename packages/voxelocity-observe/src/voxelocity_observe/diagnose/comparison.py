"""Two diagnoses of one program, before and after a change: what became of its pace and of each finding.

Causes are matched by code, because the lines of a program move when it is changed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text, factor_text, rate_text
from voxelocity_observe.core.time_parts import TimeShare, part_label
from voxelocity_observe.diagnose.accounting import counted_images
from voxelocity_observe.diagnose.facts import PARTS, Facts
from voxelocity_observe.diagnose.render.page import finding_card
from voxelocity_observe.diagnose.render.wording import Pace, faster_text, pace, style_for, title_text
from voxelocity_observe.diagnose.result import Diagnosis, Finding
from voxelocity_observe.document.blocks import (
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
from voxelocity_observe.document.settings import different_machines, settings_before_and_after

# Keys of places and counts, which differ between any two recordings.
_NO_SETTINGS = frozenset({"key", "where", "collate_where", "num_epochs", "num_batches", "input_shapes"})
# A pace that differs by less is the same.
_SAME = 0.03
_FEW_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a step of the program costs, before or after the change.

    Attributes:
        costs: seconds of one counted step, by part. Validation and saving are spread over the steps, on both sides as
            often per step as before, so what happened to be watched does not decide.
        images: mean images of a step; None where unknown.
    """

    pace: Pace
    costs: Mapping[str, float]
    images: float | None

    @property
    def cost_s(self) -> float | None:
        """All costs of a step; None where there are none."""
        return sum(self.costs.values()) if self.costs else None


@dataclass(frozen=True, kw_only=True)
class DiagnosisComparison:
    """Before and after.

    Attributes:
        achieved: times as many images a second, or steps where images are unknown; None where one side saw no step.
        predicted: times faster, by all causes that are gone together; None where there is no such cause or one of
            their savings is unknown. Savings that add up to all of the time overlap, and only the largest counts.
        gone, new, still: causes by what became of them; `still` holds those of the second diagnosis.
        notices: what a reader must know before believing the figures.
    """

    before: StepCost
    after: StepCost
    achieved: float | None
    predicted: float | None
    gone: Sequence[Finding]
    new: Sequence[Finding]
    still: Sequence[Finding]
    notices: Sequence[str]


def compare_diagnoses(a: Diagnosis, b: Diagnosis) -> DiagnosisComparison:
    """What became of the program between `a`, before, and `b`, after."""
    before, after = (
        StepCost(pace=pace(side), costs=_costs(side.facts, a.facts), images=_images(side.facts)) for side in (a, b)
    )
    achieved = None
    if before.cost_s is not None and after.cost_s is not None:
        more_images = after.images / before.images if before.images and after.images else 1.0
        achieved = before.cost_s / max(after.cost_s, 1e-12) * more_images
    gone, new = _without(a.causes, b.causes), _without(b.causes, a.causes)
    return DiagnosisComparison(
        before=before,
        after=after,
        achieved=achieved,
        predicted=_together(gone),
        gone=gone,
        new=new,
        still=[finding for finding in b.causes if finding not in new],
        notices=_notices(a, b, has_images=None not in (before.images, after.images)),
    )


def diagnosis_comparison_document(a: Diagnosis, b: Diagnosis) -> Document:
    """What became of the program between `a`, before, and `b`, after, as a document."""
    found = compare_diagnoses(a, b)
    cards = [finding_card(finding, n, b.facts) for n, finding in enumerate([*found.new, *found.still], start=1)]
    settings, differing = settings_before_and_after(*_both_settings(a.facts, b.facts))
    return Document(
        kind="diagnosis comparison",
        title=title_text(b.facts),
        verdict=comparison_verdict(found),
        notices=found.notices,
        cards=_cards(found),
        sections=[
            Section(title="What a step costs", blocks=_cost_bars(found)),
            Section(title="What is gone", blocks=_gone(found)),
            Section(title="What is new", blocks=cards[: len(found.new)]),
            Section(title="What is still there", blocks=cards[len(found.new) :]),
            settings,
            Section(
                title="The two verdicts",
                blocks=[
                    Heading(text="Before"),
                    Text(text=a.verdict),
                    Heading(text="After"),
                    Text(text=b.verdict),
                ],
                is_detail=True,
            ),
        ],
        footer="Made from the `diagnosis.json` of both folders.",
        values={**_values(found), "settings": differing},
    )


def comparison_verdict(found: DiagnosisComparison) -> str:
    """One or two plain sentences: how much faster, and whether that was predicted."""
    if found.achieved is None:
        return "The paces cannot be compared: no counted step was seen in one of the two."
    before, after = found.before, found.after
    images = ""
    if before.images and after.images and before.images != after.images:
        images = f" with {after.images:.3g} images instead of {before.images:.3g}"
    sentence = (
        f"After the change the program {_change_text(found.achieved)}: a step costs {duration_text(after.cost_s)} "
        f"instead of {duration_text(before.cost_s)}{images}, including its share of validation and saving."
    )
    if found.predicted is None:
        return sentence
    agreement = found.predicted / found.achieved
    came = "as" if 1 / 1.5 <= agreement <= 1.5 else "more than" if agreement < 1 else "less than"
    predicted = f"{factor_text(found.predicted)} was predicted, {factor_text(found.achieved)} was achieved"
    return f"{sentence} {predicted}: {came} predicted."


def _change_text(factor: float) -> str:
    if abs(factor - 1.0) < _SAME:
        return "is as fast as before"
    if factor < 1.0:
        return f"is slower and takes {1.0 / factor:.{1 if factor > 0.1005 else 0}f} times as long"
    text = faster_text(factor, saved_share=1.0 - 1.0 / factor)
    return f"{'takes' if text.endswith('time') else 'is'} {text}"


def _values(found: DiagnosisComparison) -> dict[str, Any]:
    """The comparison as plain data; numbers that are missing are None.

    Returns:
        achieved, predicted: times faster.
        before, after: `steps_per_s`, `images_per_s`, `step_s` (median), and `costs_s` of a step by part.
        gone: `code`, `title`, `predicted`, `achieved` of each cause; new, still: `code` and `title`.
    """
    sides = {
        word: {
            "steps_per_s": side.pace.steps_per_s,
            "images_per_s": side.pace.images_per_s,
            "step_s": side.pace.step_s,
            "costs_s": side.costs,
        }
        for word, side in (("before", found.before), ("after", found.after))
    }
    gone = [
        {"code": finding.code, "title": finding.title, "predicted": finding.speedup, "achieved": found.achieved}
        for finding in found.gone
    ]
    new, still = (
        [{"code": finding.code, "title": finding.title} for finding in some] for some in (found.new, found.still)
    )
    values = {"achieved": found.achieved, "predicted": found.predicted, **sides}
    plain: dict[str, Any] = plain_data({**values, "gone": gone, "new": new, "still": still}, where="comparison")
    return plain


def _cards(found: DiagnosisComparison) -> list[Card]:
    before, after = found.before.pace, found.after.pace
    rates = [("Steps per second", before.steps_per_s, after.steps_per_s)]
    if before.images_per_s is not None and after.images_per_s is not None:
        rates.append(("Images per second", before.images_per_s, after.images_per_s))
    return [
        Card(
            name="Times as fast", value=factor_text(found.achieved), note="after the change, validating equally often"
        ),
        Card(name="Predicted", value=factor_text(found.predicted), note="by the findings that are gone, together"),
        *(Card(name=name, value=rate_text(now), note=f"{rate_text(then)} before") for name, then, now in rates),
        Card(name="Median step", value=duration_text(after.step_s), note=f"{duration_text(before.step_s)} before"),
    ]


def _cost_bars(found: DiagnosisComparison) -> list[Block]:
    """What a step costs by part, before and after, on one scale."""
    sides = {"Before": found.before, "After": found.after}
    splits = {
        label: [TimeShare(name=name, seconds=seconds, share=0.0) for name, seconds in side.costs.items()]
        for label, side in sides.items()
        if side.costs
    }
    if not splits:
        return []
    colors = {part.name: style_for(part.name).css for parts in splits.values() for part in parts}
    rows = [(name, *(duration_text(side.costs.get(name, 0.0)) for side in sides.values())) for name in colors]
    table = Table(
        caption="What a step costs by part",
        heads=("Part", *sides),
        rows=[*rows, ("sum", *(duration_text(side.cost_s) for side in sides.values()))],
        swatches=list(colors.values()),
        has_total=True,
    )
    totals = {label: f"{duration_text(sides[label].cost_s)} a step" for label in splits}
    hint = "Validation, saving and epoch starts are spread over the steps, on both sides as often as before."
    bars = bars_on_one_scale(splits, colors, totals)
    return [Text(text=hint, is_hint=True), TimeBars(caption="Time of one step by part", bars=bars, table=table)]


def _gone(found: DiagnosisComparison) -> list[Block]:
    if not found.gone:
        return [Text(text="No cause that was found before is gone.")]
    achieved = found.achieved
    rows = [
        (
            finding.code,
            finding.title,
            factor_text(finding.speedup),
            factor_text(achieved),
            f"{finding.speedup / achieved:.2f}" if finding.speedup and achieved else "no gain was predicted",
        )
        for finding in found.gone
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


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """The findings without a counterpart of the same code among the others; the last ones if several share a code."""
    left = Counter(other.code for other in others)
    kept = []
    for finding in findings:
        if left[finding.code]:
            left[finding.code] -= 1
        else:
            kept.append(finding)
    return kept


def _together(gone: Sequence[Finding]) -> float | None:
    """Times faster if every saving comes in full."""
    saved = [finding.saves_s / finding.of_s for finding in gone if finding.saves_s is not None and finding.of_s > 0.0]
    if not gone or len(saved) < len(gone):
        return None
    share = sum(saved) if sum(saved) < 1.0 else max(saved)
    return 1.0 / max(1.0 - share, 1e-9)


def _both_settings(a: Facts, b: Facts) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of both; groups that only one of the two saw are left out."""
    before, after = _settings(a), _settings(b)
    both = [key for key in before if key in after]
    return {key: before[key] for key in both}, {key: after[key] for key in both}


def _settings(facts: Facts) -> dict[str, Any]:
    """What the user sets, nested; of several training loaders, the first. What was not seen is None."""
    records = {
        "settings": facts.settings,
        "loader": next((loader for loader in facts.loaders if loader.is_for_training), None),
        "network": facts.network,
        "optimizer": facts.optimizer,
    }
    settings = {
        name: {key: None if value == "" else value for key, value in asdict(record).items() if key not in _NO_SETTINGS}
        for name, record in records.items()
        if record is not None
    }
    versions = {"versions": dict(facts.main.versions)} if facts.main.versions else {}
    return {"command": " ".join(facts.command), **settings, **versions}


def _notices(a: Diagnosis, b: Diagnosis, *, has_images: bool) -> list[str]:
    notices = []
    if machines := different_machines([side.facts.environment for side in (a, b)]):
        notices.append(f"The two were made on different machines ({machines}); their times cannot be compared.")
    before, after = (list(dict.fromkeys(interval.kind for interval in side.facts.passes)) for side in (a, b))
    seen_once = {kind: "only before; it is counted at its earlier cost" for kind in before if kind not in after}
    seen_once |= {kind: "only after; it is left out" for kind in after if kind not in before}
    notices += [f"{kind.capitalize()} was seen {what}." for kind, what in seen_once.items()]
    sizes = [
        next((loader.batch_size for loader in side.facts.loaders if loader.is_for_training), None) for side in (a, b)
    ]
    if not has_images and None not in sizes and sizes[0] != sizes[1]:
        notices.append(f"The batches differ ({sizes[0]} and {sizes[1]} items), and the comparison counts steps.")
    few = [len(side.facts.counted) for side in (a, b) if 0 < len(side.facts.counted) < _FEW_STEPS]
    if few:
        notices.append(f"One of the two rests on only {count_text(few[0], 'step')}; its figures are rough.")
    return notices


def _costs(facts: Facts, like: Facts) -> dict[str, float]:
    """Seconds of a counted step by part, and of each kind of pass, done as often per step as in `like`.

    A kind of pass that was not seen here costs what it costs there. Empty where either saw no step.
    """
    steps, others = facts.counted, like.counted
    if not steps or not others:
        return {}
    keys = dict.fromkeys([*PARTS, *(key for step in steps for key in step.parts)])
    sums = {part_label(key): fsum(step.parts.get(key, 0.0) for step in steps) for key in keys}
    costs = {name: seconds / len(steps) for name, seconds in sums.items() if seconds > 0.0}
    for kind in dict.fromkeys(interval.kind for interval in like.passes):
        there = [interval.seconds for interval in like.passes if interval.kind == kind]
        here = [interval.seconds for interval in facts.passes if interval.kind == kind] or there
        costs[kind] = statistics.fmean(here) * len(there) / len(others)
    return costs


def _images(facts: Facts) -> float | None:
    images = counted_images(facts)
    return None if images is None else images / len(facts.counted)
