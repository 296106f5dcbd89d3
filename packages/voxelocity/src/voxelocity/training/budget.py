"""How much of a training is done, by steps or by the clock, and how a time budget is divided."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from voxelocity_observe.core.quantities import count_text, duration_text

# The final validation is shortened if steps would get less than the first share of a budget of two minutes or less, or
# less than the second share of five minutes or more; but cases are left out only if steps would get less than half.
_SHORT_S, _SHORT_SHARE = 120.0, 0.90
_LONG_S, _LONG_SHARE = 300.0, 0.95
_SHARE_FOR_CASES = 0.5
# A validation that takes at most this share is never shortened, however long it took to begin, or the run before it got
# more time, or its last steps took.
_FREE_SHARE = 0.01
# If even the cheapest validation leaves less than this share to training, the budget is exceeded instead.
_LEAST_SHARE = 0.05
_MOST_SLOWDOWN = 4.0
# The first validation comes when this share of the training is done, unless its usual time comes before; trainings of
# a few seconds have none.
_FIRST_AT, _FIRST_AFTER_S = 0.2, 3.0
MOST_FIRST_SHARE = 0.02
"""Of the training, what a first validation may take; cases are left out of it before that, down to one."""


class Budget:
    """Ends the training after a number of steps, at a given time, or at whichever comes first.

    Without an end in time, progress depends only on the step, so resumed runs repeat it exactly.

    Args:
        elapsed_s: returns the seconds since the program started, of all sessions of this run.
        max_steps: ends after this many steps; 0 for no limit.
        begin_s: what `elapsed_s` returned when the training began.
        end_s: what it returns when the training must end, so that what follows still fits.
    """

    def __init__(
        self, elapsed_s: Callable[[], float], *, max_steps: int = 0, begin_s: float = 0.0, end_s: float = math.inf
    ) -> None:
        self._elapsed_s, self._max_steps, self._begin_s = elapsed_s, max_steps, begin_s
        self._most = 0.0
        self.end_at(end_s)

    def progress(self, step: int) -> float:
        """Share of the training done before optimizer step `step`, 0 to 1; at 1 the training ends. It never falls."""
        self._most = self.progress_ahead(step)
        return self._most

    def progress_ahead(self, step: int) -> float:
        """Estimate of the same for a step that is not due yet; may be called from any thread."""
        by_clock = (self._elapsed_s() - self._begin_s) / (self._end_s - self._begin_s)
        by_steps = step / self._max_steps if self._max_steps else 0.0
        return min(1.0, max(by_clock, by_steps, self._most))

    def remaining_s(self) -> float:
        """Seconds until the clock ends the training, at least 0; infinite if only steps end it."""
        return max(0.0, self._end_s - self._elapsed_s())

    def end_at(self, end_s: float) -> None:
        """Moves the end, once the time for what follows is known better. Progress waits rather than fall."""
        self._end_s = max(end_s, self._begin_s + 1e-3)


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """How the time of a run is divided.

    Attributes:
        begin_s: when the training began, or would have begun in a single session; what came before it took this long.
        end_s: when the training ends.
        validate_s: expected seconds of the final validation.
        report_s: most seconds that the model's files and the report take.
        late_s: least and most seconds by which the run exceeds its budget; 0 if it ends in time.
        is_short: the budget left less than a twentieth of itself for training, which may now take a twentieth.
    """

    begin_s: float
    end_s: float
    validate_s: float
    report_s: float
    late_s: tuple[float, float]
    is_short: bool

    def short_text(self, budget_s: float, num_cases: int) -> str:
        """What a user must know about a budget that is short."""
        fewest_s, most_s = self.late_s
        late = f"will end at least {duration_text(fewest_s)} and" if fewest_s > 0.0 else "may end"
        return (
            f"train: a budget of {duration_text(budget_s)} is short: {duration_text(self.begin_s)} went into "
            f"start-up and preparation, and validating up to {count_text(num_cases, 'case')} takes about "
            f"{duration_text(self.validate_s)} (estimated from a few windows); the run trains for at most a twentieth "
            "of the budget and "
            f"{late} up to {duration_text(most_s)} late: the model's files and the report take up to "
            f"{duration_text(self.report_s)}"
        )


def allot(
    budget_s: float, *, now_s: float, trained_s: float, validate_s: float, report_s: float, may_end_early: bool = False
) -> Allotment:
    """Divides a time budget. Training gets all but what came before and what follows, and at least a twentieth.

    Args:
        budget_s: of the whole run.
        now_s: seconds of the run up to now, all sessions.
        trained_s: those of them that training took, intermediate validations included.
        validate_s: expected seconds of the final validation.
        report_s: most seconds that the model's files and the report take.
        may_end_early: a number of steps or a target may end the training before its time.
    """
    begin_s, least_s = now_s - trained_s, _LEAST_SHARE * budget_s
    end_s = budget_s - validate_s - report_s
    is_short = end_s - begin_s < least_s
    end_s = begin_s + least_s if is_short else end_s
    trained_until_s = max(now_s, end_s)
    earliest_s = (now_s if may_end_early else trained_until_s) + validate_s
    latest_s = trained_until_s + validate_s + report_s
    late_s = (max(0.0, earliest_s - budget_s), max(0.0, latest_s - budget_s))
    return Allotment(
        begin_s=begin_s, end_s=end_s, validate_s=validate_s, report_s=report_s, late_s=late_s, is_short=is_short
    )


def left_for_validation(
    budget_s: float, *, now_s: float, stepped_s: float, report_s: float, validation_share: float
) -> tuple[float, float]:
    """The time that the final validation may take, so that training steps get most of a budget.

    Args:
        budget_s: of the whole run.
        now_s: seconds of the run up to now, all sessions.
        stepped_s: those of them that went into training steps.
        report_s: most seconds that the model's files and the report take.
        validation_share: what intermediate validations may take, as a share of the seconds of steps.

    Returns:
        Seconds for the windows as planned, mirrored ones included: if they need more, cheaper ones are used; and
        seconds for all cases in the cheapest way: if they need more, some are left out.
    """
    between = min(1.0, max(0.0, (budget_s - _SHORT_S) / (_LONG_S - _SHORT_S)))
    shares = (_SHORT_SHARE + between * (_LONG_SHARE - _SHORT_SHARE), _SHARE_FOR_CASES)
    to_do = (max(0.0, share * budget_s - stepped_s) * (1.0 + validation_share) for share in shares)
    free_s = min(_FREE_SHARE * budget_s, max(0.0, budget_s - report_s - now_s))
    windows_s, cases_s = (max(free_s, budget_s - report_s - steps_s - now_s) for steps_s in to_do)
    return windows_s, cases_s


def left_at_end_s(budget_s: float, *, now_s: float, report_s: float, planned_s: float) -> float:
    """The time that the final validation may take once training has ended.

    Args:
        budget_s: of the whole run.
        now_s: seconds of the run up to now, all sessions.
        report_s: most seconds that the model's files and the report take.
        planned_s: what was set aside for it. Last steps that came late do not take this away, up to a share of the
            budget that a validation may always have.
    """
    return max(0.0, budget_s - report_s - now_s, min(_FREE_SHARE * budget_s, planned_s))


def first_dice_is_due(trained_s: float, *, progress: float, expected_s: float) -> bool:
    """Whether the user should see a first Dice now, although the steps have not paid for it yet.

    Args:
        trained_s: seconds of training up to now.
        progress: share of the training that they are.
        expected_s: what a validation takes.
    """
    is_time = trained_s >= _FIRST_AFTER_S and progress >= _FIRST_AT
    return is_time and expected_s <= MOST_FIRST_SHARE * trained_s / progress


def slowdown(wall_s: float, cpu_s: float) -> float:
    """How many times as long work in one thread takes here as on an idle machine."""
    return min(_MOST_SLOWDOWN, max(1.0, wall_s / max(cpu_s, 1e-9))) if cpu_s > 0.0 else 1.0
