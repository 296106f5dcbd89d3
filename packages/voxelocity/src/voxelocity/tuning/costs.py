"""What a tuning of our own runs minimizes: the time of the whole run, or its memory without losing speed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from voxelocity.planning import Planned
from voxelocity.tuning.trial import TrialOutcome

RATE, VALIDATION, WAIT = "images_per_s", "validation_s", "wait_share"
"""What a trial of a run measures: images a second, seconds of a validation, share of the time spent waiting."""

# Where a time budget decides how many steps there are.
_STEPS_OF_A_BUDGET = 1_000


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """The seconds that a run takes: its images at the measured rate, and the validations of its cases.

    Attributes:
        num_images: that the run trains on.
        num_validations: of a case as large as the measured one.
    """

    num_images: int
    num_validations: int

    @classmethod
    def of(cls, planned: Planned) -> RunTime:
        """Of a plan, with the validations that its share of the time pays for counted as part of the training."""
        plan = planned.plan
        steps = plan.train.steps or _STEPS_OF_A_BUDGET
        num_held = len(planned.cases.split(planned.fold).validation)
        return cls(num_images=steps * plan.data.batch_size, num_validations=max(1, num_held))

    def seconds(self, outcome: TrialOutcome) -> float:
        """Of a run with these settings."""
        rate, validation_s = (statistics.median(outcome.measurements[name]) for name in (RATE, VALIDATION))
        return self.num_images / rate + self.num_validations * validation_s

    def __call__(self, outcome: TrialOutcome, default: TrialOutcome | None) -> float:
        return self.seconds(outcome)


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The most memory, of the device or else of the host, of settings that lose no speed beyond a margin.

    Attributes:
        time: of a run.
        margin: share of the time by which a run may take longer than with the default settings.
        on_device: whether memory of the device counts.
    """

    time: RunTime
    margin: float
    on_device: bool

    def __call__(self, outcome: TrialOutcome, default: TrialOutcome | None) -> float | None:
        if default is not None and self.time.seconds(outcome) > (1.0 + self.margin) * self.time.seconds(default):
            return None
        return float(peak_bytes(outcome, on_device=self.on_device))


def peak_bytes(outcome: TrialOutcome, *, on_device: bool) -> int:
    """The most memory of the device or of the host."""
    return outcome.peak_device_bytes if on_device else outcome.peak_host_bytes
