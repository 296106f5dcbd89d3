"""Two diagnoses of one program, before and after a change: what became of its pace and of each finding."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from voxelocity.core.plain import plain_data
from voxelocity.diagnosis.accounting.watched import counted_images
from voxelocity.diagnosis.facts import PARTS, Facts
from voxelocity.diagnosis.result import Diagnosis, Finding
from voxelocity.diagnosis.shown.looks import name_of
from voxelocity.diagnosis.shown.wording import Pace, faster_text, pace
from voxelocity.report.labelled import LabelledRun, differing_settings
from voxelocity.report.quantities import count_text, duration_text, factor_text, value_text

BEFORE, AFTER = "before", "after"
# What names places and counts, and so differs between any two recordings.
_NO_SETTINGS = frozenset({"key", "where", "collate_where", "num_epochs", "num_batches", "input_shapes"})
_SAME = 0.03


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A cause that no longer holds the program back.

    Attributes:
        predicted: times faster, as its finding said; None where it said nothing.
        achieved: times faster that the whole program came to be, whatever of it this finding's change brought.
    """

    finding: Finding
    predicted: float | None
    achieved: float | None

    @property
    def agreement(self) -> float | None:
        """Predicted over achieved: 1 where it came as told, above where less came."""
        return self.predicted / self.achieved if self.predicted and self.achieved else None


@dataclass(frozen=True, kw_only=True)
class DiagnosisComparison:
    """Before and after.

    Attributes:
        costs_before, costs_after: seconds that one counted step costs, by part, validation and saving spread over the
            steps, as often a step as before on both sides: what happened to be watched must not decide.
        images_before, images_after: of a step, mean; None where unknown.
        achieved: times as many images a second, or steps where images are unknown; None where one side saw no step.
        predicted: by all causes that are gone together; None where there is none or one of them is not known. Where
            their savings overlap so far that their sum is all the time there was, it is that of the largest alone.
        gone, new, still: causes by what became of them; `still` as they are after.
        settings: dotted key to (before, after), where they differ; `num_equal` others do not.
        notices: what a reader must know before believing the figures.
    """

    before: Pace
    after: Pace
    costs_before: Mapping[str, float]
    costs_after: Mapping[str, float]
    images_before: float | None
    images_after: float | None
    achieved: float | None
    predicted: float | None
    gone: Sequence[Gone]
    new: Sequence[Finding]
    still: Sequence[Finding]
    settings: dict[str, tuple[Any, ...]]
    num_equal: int
    notices: Sequence[str]


def compare_diagnoses(a: Diagnosis, b: Diagnosis) -> DiagnosisComparison:
    """What became of the program between `a`, before, and `b`, after.

    Causes are told apart by their code, as the lines of a program move when it is changed.
    """
    before, after = pace(a), pace(b)
    costs_before, costs_after = _costs(a.facts, a.facts), _costs(b.facts, a.facts)
    images_before, images_after = _images(a.facts), _images(b.facts)
    achieved = None
    if costs_before and costs_after:
        more_images = images_after / images_before if images_before and images_after else 1.0
        achieved = sum(costs_before.values()) / max(sum(costs_after.values()), 1e-12) * more_images
    gone = _without(a.causes, b.causes)
    settings, num_equal = _differing(a.facts, b.facts)
    return DiagnosisComparison(
        before=before,
        after=after,
        costs_before=costs_before,
        costs_after=costs_after,
        images_before=images_before,
        images_after=images_after,
        achieved=achieved,
        predicted=_together(gone),
        gone=[Gone(finding=finding, predicted=finding.speedup, achieved=achieved) for finding in gone],
        new=_without(b.causes, a.causes),
        still=[finding for finding in b.causes if finding not in _without(b.causes, a.causes)],
        settings=settings,
        num_equal=num_equal,
        notices=_notices(a, b, has_images=None not in (images_before, images_after)),
    )


def comparison_verdict(found: DiagnosisComparison) -> str:
    """One or two plain sentences: how much faster, and whether it came as predicted."""
    if found.achieved is None:
        return "The paces cannot be compared: no counted step was seen in one of the two."
    after, before = (duration_text(sum(costs.values())) for costs in (found.costs_after, found.costs_before))
    images = ""
    if found.images_before and found.images_after and found.images_before != found.images_after:
        images = f" with {found.images_after:.3g} images instead of {found.images_before:.3g}"
    sentence = (
        f"After the change the program {_change_text(found.achieved)}: a step costs {after} instead of {before}"
        f"{images}, its share of validation and saving included."
    )
    if found.predicted is None:
        return sentence
    agreement = found.predicted / found.achieved
    came = "as predicted" if 1 / 1.5 <= agreement <= 1.5 else "more than predicted" if agreement < 1 else "less"
    predicted = f"{factor_text(found.predicted)} was predicted, {factor_text(found.achieved)} came"
    return f"{sentence} {predicted}: {came + ' than predicted' if came == 'less' else came}."


def comparison_lines(a: Diagnosis, b: Diagnosis) -> list[str]:
    """The comparison as lines for a terminal, without colour and not wrapped."""
    found = compare_diagnoses(a, b)
    lines = [comparison_verdict(found), *(f"Notice: {notice}" for notice in found.notices), ""]
    rows = [("seconds a step", BEFORE, AFTER), *part_rows(found)]
    width = max(len(row[0]) for row in rows)
    lines += [f"{name:{width}}  {before:>10}  {after:>10}" for name, before, after in rows]
    lines += _finding_lines(found)
    if found.settings:
        lines += ["", "Set differently"]
        lines += [
            f"  {key}: {value_text(values[0], key)} -> {value_text(values[1], key)}"
            for key, values in found.settings.items()
        ]
    return lines


def comparison_to_plain(a: Diagnosis, b: Diagnosis) -> dict[str, Any]:
    """The comparison as data for `json.dump`; numbers that do not exist are null.

    Returns:
        format, version: what this is; within a version keys are only added.
        verdict, notices: sentences.
        achieved, predicted: times faster.
        before, after: `steps_per_s`, `images_per_s`, `step_s` (median), and `costs_s` of a step by part.
        gone: `code`, `title`, `predicted`, `achieved` of each cause; new, still: `code` and `title`.
        settings: dotted key to `before` and `after`, where they differ.
    """
    found = compare_diagnoses(a, b)
    sides = {BEFORE: (found.before, found.costs_before), AFTER: (found.after, found.costs_after)}
    values = {
        "format": "voxelocity diagnosis comparison",
        "version": 1,
        "verdict": comparison_verdict(found),
        "notices": list(found.notices),
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


def agreement_text(gone: Gone) -> str:
    """What was predicted of a finding that is gone, and what came: "2.5× predicted, 2.2× came: 1.1 of it"."""
    if gone.predicted is None or gone.achieved is None or gone.agreement is None:
        return "no gain was predicted"
    return (
        f"{factor_text(gone.predicted)} predicted, {factor_text(gone.achieved)} came; "
        f"predicted / achieved {gone.agreement:.2f}"
    )


def part_rows(found: DiagnosisComparison) -> list[tuple[str, str, str]]:
    """What a step costs by part, before and after, with the sum last."""
    both = (found.costs_before, found.costs_after)
    names = list(dict.fromkeys(name for costs in both for name in costs))
    rows = [(name, *(duration_text(costs.get(name, 0.0)) for costs in both)) for name in names]
    sums = [duration_text(sum(costs.values()) if costs else None) for costs in both]
    return [(row[0], row[1], row[2]) for row in [*rows, ("sum", *sums)]]


def _finding_lines(found: DiagnosisComparison) -> list[str]:
    lines = []
    if found.gone:
        lines += ["", "Gone"]
        lines += [f"  {one.finding.code} {one.finding.title}; {agreement_text(one)}" for one in found.gone]
    for head, findings in (("New", found.new), ("Still there", found.still)):
        if findings:
            lines += ["", head, *(f"  {finding.code} {finding.title}" for finding in findings)]
    return lines


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """The findings that have no counterpart of the same code among the others; of several alike the last ones."""
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


def _differing(a: Facts, b: Facts) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Settings that differ, and how many do not; groups that only one of the two saw are left out."""
    groups = [_settings(facts) for facts in (a, b)]
    both = groups[0].keys() & groups[1].keys()
    runs = [
        LabelledRun(label=str(n), settings={k: v for k, v in one.items() if k in both}) for n, one in enumerate(groups)
    ]
    return differing_settings(runs)


def _settings(facts: Facts) -> dict[str, Any]:
    """What a person sets, nested; of several training loaders the first. What was not seen is None."""
    loader = next((one for one in facts.loaders if one.is_for_training), None)
    records = {
        "settings": facts.settings,
        "loader": loader,
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
    for key in ("cpu", "gpu", "num_cpus"):
        values = [one.facts.environment.get(key) for one in (a, b)]
        if values[0] != values[1]:
            notices.append(
                f"The two were made on different machines ({key}: {value_text(values[0])}, {value_text(values[1])}); "
                "their times do not compare."
            )
    kinds = [dict.fromkeys(one.kind for one in side.facts.passes) for side in (a, b)]
    for only, other, done in ((kinds[0], kinds[1], "counted as it was before"), (kinds[1], kinds[0], "left out")):
        word = BEFORE if only is kinds[0] else AFTER
        notices += [f"{kind.capitalize()} was seen {word} alone; it is {done}." for kind in only if kind not in other]
    sizes = [_batch_size(one.facts) for one in (a, b)]
    if not has_images and None not in sizes and sizes[0] != sizes[1]:
        notices.append(f"The batches differ ({sizes[0]} and {sizes[1]} items), and steps are what was counted.")
    few = [count_text(pace(one).num_steps, "step") for one in (a, b) if 0 < pace(one).num_steps < 20]
    if few:
        notices.append(f"One of the two rests on {few[0]} only; its figures are rough.")
    return notices


def _costs(facts: Facts, like: Facts) -> dict[str, float]:
    """Seconds of a counted step by part, and of each kind of pass, done as often a step as in `like`.

    A kind of pass that was not seen here costs what it costs there. Empty where either saw no step.
    """
    steps, others = facts.counted, like.counted
    if not steps or not others:
        return {}
    keys = dict.fromkeys([*PARTS, *(key for step in steps for key in step.parts)])
    sums = {name_of(key): sum(step.parts.get(key, 0.0) for step in steps) for key in keys}
    costs = {name: seconds / len(steps) for name, seconds in sums.items() if seconds > 0.0}
    for kind in dict.fromkeys(one.kind for one in like.passes):
        there = [one.seconds for one in like.passes if one.kind == kind]
        here = [one.seconds for one in facts.passes if one.kind == kind] or there
        costs[kind] = statistics.fmean(here) * len(there) / len(others)
    return costs


def _images(facts: Facts) -> float | None:
    images = counted_images(facts)
    return None if images is None else images / len(facts.counted)


def _batch_size(facts: Facts) -> int | None:
    return next((one.batch_size for one in facts.loaders if one.is_for_training), None)


def _change_text(factor: float) -> str:
    if abs(factor - 1.0) < _SAME:
        return "is as fast as before"
    if factor < 1.0:
        return f"is slower, at {factor_text(factor)} of its pace"
    text = faster_text(factor, saved_share=1.0 - 1.0 / factor)
    return f"{'takes' if text.endswith('time') else 'is'} {text}"
