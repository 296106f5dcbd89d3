"""The result of a diagnosis: a verdict, where the time went, and what to change. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxelocity.core.time_parts import TimeShare
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.result.finding import Basis, Finding


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How fast the program would be if its data were always there.

    Attributes:
        step_s: seconds of a step now, the mean of the counted ones.
        resident_s: seconds of a step on batches that are already there.
        basis: "measured" by the experiment, "estimated" from the parts of the counted steps.
    """

    step_s: float
    resident_s: float
    basis: Basis


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds a program back.

    Attributes:
        verdict: one plain sentence.
        split: all of the watched time, in the order of a step, then validation, saving, epoch start and other;
            the seconds sum to the watched time.
        ceiling: None where no step was counted.
        findings: causes first, by how much they save; then what is worth knowing.
        not_measured: what could not be seen, and why, in words.
        own_share: share of the watched time that watching itself took.
        facts: what all of it is based on.
    """

    verdict: str
    split: Sequence[TimeShare]
    ceiling: Ceiling | None
    findings: Sequence[Finding]
    not_measured: Sequence[str]
    own_share: float | None
    facts: Facts

    @property
    def causes(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.is_cause]
