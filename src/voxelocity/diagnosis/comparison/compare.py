"""Two diagnoses of one program, before and after a change: what became of its pace and of each finding."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from voxelocity.core.quantities import count_text
from voxelocity.core.time_parts import part_label
from voxelocity.diagnosis.accounting.watched import counted_images
from voxelocity.diagnosis.facts import PARTS, Facts
from voxelocity.diagnosis.render.wording import Pace, pace
from voxelocity.diagnosis.result import Diagnosis, Finding
from voxelocity.report.differences import different_machines
from voxelocity.report.labeled import LabeledRun, differing_settings

BEFORE, AFTER = "before", "after"
# Keys of places and counts, which differ between any two recordings.
_NO_SETTINGS = frozenset({"key", "where", "collate_where", "num_epochs", "num_batches", "input_shapes"})


@dataclass(frozen=True, kw_only=True)
class ResolvedFinding:
    """A cause that no longer holds the program back.

    Attributes:
        predicted: times faster, as its finding said; None where it said nothing.
        achieved: times faster the whole program became, whatever part of it this finding's change brought.
    """

    finding: Finding
    predicted: float | None
    achieved: float | None

    @property
    def agreement(self) -> float | None:
        """Predicted over achieved: 1 where the gain was as predicted, above 1 where it was smaller."""
        return self.predicted / self.achieved if self.predicted and self.achieved else None


@dataclass(frozen=True, kw_only=True)
class DiagnosisComparison:
    """Before and after.

    Attributes:
        costs_before, costs_after: seconds of one counted step, by part. Validation and saving are spread over the
            steps, on both sides as often per step as before, so what happened to be watched does not decide.
        images_before, images_after: mean images of a step; None where unknown.
        achieved: times as many images a second, or steps where images are unknown; None where one side saw no step.
        predicted: times faster, by all causes that are gone together; None where there is no such cause or one of
            their savings is unknown. Savings that add up to all of the time overlap, and only the largest counts.
        gone, new, still: causes by what became of them; `still` holds those of the second diagnosis.
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
    gone: Sequence[ResolvedFinding]
    new: Sequence[Finding]
    still: Sequence[Finding]
    settings: dict[str, tuple[Any, ...]]
    num_equal: int
    notices: Sequence[str]


def compare_diagnoses(a: Diagnosis, b: Diagnosis) -> DiagnosisComparison:
    """What became of the program between `a`, before, and `b`, after.

    Causes are matched by code, because the lines of a program move when it is changed.
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
        gone=[ResolvedFinding(finding=finding, predicted=finding.speedup, achieved=achieved) for finding in gone],
        new=_without(b.causes, a.causes),
        still=[finding for finding in b.causes if finding not in _without(b.causes, a.causes)],
        settings=settings,
        num_equal=num_equal,
        notices=_notices(a, b, has_images=None not in (images_before, images_after)),
    )


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


def _differing(a: Facts, b: Facts) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Settings that differ, and how many do not; groups that only one of the two saw are left out."""
    groups = [_settings(facts) for facts in (a, b)]
    both = groups[0].keys() & groups[1].keys()
    runs = [
        LabeledRun(label=str(n), settings={k: v for k, v in one.items() if k in both}) for n, one in enumerate(groups)
    ]
    return differing_settings(runs)


def _settings(facts: Facts) -> dict[str, Any]:
    """What the user sets, nested; of several training loaders, the first. What was not seen is None."""
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
    if machines := different_machines([one.facts.environment for one in (a, b)]):
        notices.append(f"The two were made on different machines ({machines}); their times do not compare.")
    kinds = [dict.fromkeys(one.kind for one in side.facts.passes) for side in (a, b)]
    for only, other, done in ((kinds[0], kinds[1], "counted at its earlier cost"), (kinds[1], kinds[0], "left out")):
        word = BEFORE if only is kinds[0] else AFTER
        notices += [f"{kind.capitalize()} was seen only {word}; it is {done}." for kind in only if kind not in other]
    sizes = [_batch_size(one.facts) for one in (a, b)]
    if not has_images and None not in sizes and sizes[0] != sizes[1]:
        notices.append(f"The batches differ ({sizes[0]} and {sizes[1]} items), and the comparison counts steps.")
    few = [count_text(pace(one).num_steps, "step") for one in (a, b) if 0 < pace(one).num_steps < 20]
    if few:
        notices.append(f"One of the two rests on only {few[0]}; its figures are rough.")
    return notices


def _costs(facts: Facts, like: Facts) -> dict[str, float]:
    """Seconds of a counted step by part, and of each kind of pass, done as often per step as in `like`.

    A kind of pass that was not seen here costs what it costs there. Empty where either saw no step.
    """
    steps, others = facts.counted, like.counted
    if not steps or not others:
        return {}
    keys = dict.fromkeys([*PARTS, *(key for step in steps for key in step.parts)])
    sums = {part_label(key): sum(step.parts.get(key, 0.0) for step in steps) for key in keys}
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
