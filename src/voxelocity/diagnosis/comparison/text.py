"""A comparison of two diagnoses in words and as plain data."""

from __future__ import annotations

from typing import Any

from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import duration_text, factor_text
from voxelocity.diagnosis.comparison.compare import (
    AFTER,
    BEFORE,
    DiagnosisComparison,
    ResolvedFinding,
)
from voxelocity.diagnosis.render.wording import faster_text

# A pace that differs by less is the same.
_SAME = 0.03


def comparison_verdict(found: DiagnosisComparison) -> str:
    """One or two plain sentences: how much faster, and whether that was predicted."""
    if found.achieved is None:
        return "The paces cannot be compared: no counted step was seen in one of the two."
    after, before = (duration_text(sum(costs.values())) for costs in (found.costs_after, found.costs_before))
    images = ""
    if found.images_before and found.images_after and found.images_before != found.images_after:
        images = f" with {found.images_after:.3g} images instead of {found.images_before:.3g}"
    sentence = (
        f"After the change the program {_change_text(found.achieved)}: a step costs {after} instead of {before}"
        f"{images}, including its share of validation and saving."
    )
    if found.predicted is None:
        return sentence
    agreement = found.predicted / found.achieved
    came = "as predicted" if 1 / 1.5 <= agreement <= 1.5 else "more than predicted" if agreement < 1 else "less"
    predicted = f"{factor_text(found.predicted)} was predicted, {factor_text(found.achieved)} was achieved"
    return f"{sentence} {predicted}: {came + ' than predicted' if came == 'less' else came}."


def comparison_values(found: DiagnosisComparison) -> dict[str, Any]:
    """The comparison as plain data; numbers that are missing are None.

    Returns:
        achieved, predicted: times faster.
        before, after: `steps_per_s`, `images_per_s`, `step_s` (median), and `costs_s` of a step by part.
        gone: `code`, `title`, `predicted`, `achieved` of each cause; new, still: `code` and `title`.
        settings: dotted key to `before` and `after`, where they differ.
    """
    sides = {BEFORE: (found.before, found.costs_before), AFTER: (found.after, found.costs_after)}
    values = {
        "achieved": found.achieved,
        "predicted": found.predicted,
        **{
            word: {
                "steps_per_s": side.steps_per_s,
                "images_per_s": side.images_per_s,
                "step_s": side.step_s,
                "costs_s": costs,
            }
            for word, (side, costs) in sides.items()
        },
        "gone": [
            {
                "code": one.finding.code,
                "title": one.finding.title,
                "predicted": one.predicted,
                "achieved": one.achieved,
            }
            for one in found.gone
        ],
        "new": [{"code": one.code, "title": one.title} for one in found.new],
        "still": [{"code": one.code, "title": one.title} for one in found.still],
        "settings": {key: {BEFORE: old, AFTER: new} for key, (old, new) in found.settings.items()},
    }
    plain: dict[str, Any] = plain_data(values, where="comparison")
    return plain


def agreement_text(gone: ResolvedFinding) -> str:
    """The gain predicted by a finding that is gone, and the achieved one: "2.5× predicted, 2.2× achieved; ..."."""
    if gone.predicted is None or gone.achieved is None or gone.agreement is None:
        return "no gain was predicted"
    return (
        f"{factor_text(gone.predicted)} predicted, {factor_text(gone.achieved)} achieved; "
        f"predicted / achieved {gone.agreement:.2f}"
    )


def part_rows(found: DiagnosisComparison) -> list[tuple[str, str, str]]:
    """What a step costs by part, before and after, with the sum last."""
    both = (found.costs_before, found.costs_after)
    names = list(dict.fromkeys(name for costs in both for name in costs))
    rows = [(name, *(duration_text(costs.get(name, 0.0)) for costs in both)) for name in names]
    sums = [duration_text(sum(costs.values()) if costs else None) for costs in both]
    return [(row[0], row[1], row[2]) for row in [*rows, ("sum", *sums)]]


def _change_text(factor: float) -> str:
    if abs(factor - 1.0) < _SAME:
        return "is as fast as before"
    if factor < 1.0:
        return f"is slower and takes {1.0 / factor:.{1 if factor > 0.1005 else 0}f} times as long"
    text = faster_text(factor, saved_share=1.0 - 1.0 / factor)
    return f"{'takes' if text.endswith('time') else 'is'} {text}"
