"""What a diagnosis comes to: a verdict, where the time went, and what to change. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.result.finding import Basis, Finding


@dataclass(frozen=True, kw_only=True)
class Share:
    """One part of the watched time: "waiting for data", "copy to the device", "forward", ..., "other"."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How fast the program would be if its data were always there.

    Attributes:
        step_s: seconds of a step as it is, median of the counted ones.
        resident_s: seconds of a step on batches that are there already.
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
        split: of all that was watched, in the order of a step, then validation, saving, epoch start and other;
            the seconds sum to the watched time.
        ceiling: None where no step was counted.
        findings: causes first, the one that saves most first; then what is worth knowing.
        not_measured: what could not be seen, and why, in words.
        own_share: of the watched time that watching itself took.
        facts: behind all of it.
    """

    verdict: str
    split: Sequence[Share]
    ceiling: Ceiling | None
    findings: Sequence[Finding]
    not_measured: Sequence[str]
    own_share: float | None
    facts: Facts

    @property
    def causes(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.is_cause]
