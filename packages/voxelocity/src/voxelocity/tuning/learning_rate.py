"""The learning-rate range test: the loss while the rate grows from step to step, and the rate that follows from it.

Leslie N. Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017, arXiv:1506.01186. The choice is the
smaller of fastai's two: a tenth of the rate at the least averaged loss, and the rate at which it fell fastest. With
Muon the loss does not diverge within the range, so the least one lies anywhere on a plateau.
`python -m voxelocity.tuning.learning_rate TASK ANSWER` makes the test in a process of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.tuning.answer import run_process, write_answer
from voxelocity.tuning.measure_run import open_feed, set_up
from voxelocity.tuning.task import MeasureTask
from voxelocity_observe.document.charts import smoothed

RATE, LOSS = "learning_rate", "loss"
LEAST_RATE, MOST_RATE = 1e-6, 1.0
NUM_STEPS = 150

# The test ends where the averaged loss has risen by this multiple of what it had fallen.
_DIVERGED = 4.0
_BELOW_LEAST = 10.0


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """A range test and what follows from it.

    Attributes:
        rates: of each step, growing by one factor.
        losses: of each step, averaged with its neighbors.
        least: the rate at which the loss was least.
        steepest: the rate at which it fell fastest.
        chosen: the rate to train with; None if the loss did not fall.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    least: float
    steepest: float
    chosen: float | None

    @property
    def reason(self) -> str:
        """Why the rate was chosen, in words."""
        if self.chosen is None:
            return "the loss did not fall at any rate, so the test gives no rate"
        return (
            f"range test of {len(self.rates)} steps: the loss fell fastest at {self.steepest:.1e} and was least at "
            f"{self.least:.1e}; the smaller of the former and a tenth of the latter"
        )


def learning_rates(num_steps: int) -> list[float]:
    """From the least to the most rate, each the same factor larger than the one before."""
    factor = (MOST_RATE / LEAST_RATE) ** (1.0 / max(1, num_steps - 1))
    return [LEAST_RATE * factor**step for step in range(num_steps)]


def averaged(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Each loss as the mean of its neighborhood, on both sides, so that no bend is shifted to larger rates."""
    return [loss for _, loss in smoothed(list(zip(rates, losses, strict=True)))]


def judge(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """What follows from the losses at these rates. `losses` are as measured, not smoothed."""
    smooth = averaged(rates, losses)
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    slopes = [after - before for before, after in itertools.pairwise(smooth[: lowest + 1])]
    steepest = min(range(len(slopes)), key=slopes.__getitem__) if slopes else 0
    has_fallen = lowest > 0 and smooth[lowest] < smooth[0]
    return RangeTest(
        rates=tuple(rates),
        losses=tuple(smooth),
        least=rates[lowest],
        steepest=rates[steepest],
        chosen=float(f"{min(rates[lowest] / _BELOW_LEAST, rates[steepest]):.1e}") if has_fallen else None,
    )


def measure(task: MeasureTask, answer: Path, *, num_steps: int = NUM_STEPS) -> None:
    """Trains while the rate grows, until the loss diverges, and writes rates and losses.

    Raises:
        VoxelocityError: a case or the plan cannot be used.
    """
    step, cases, spec = set_up(task)
    training = cases.part(range(len(task.training)))
    rates, losses = list[float](), list[float]()
    with open_feed(task, training, spec) as feed:
        for rate in learning_rates(num_steps):
            # Read at every step: the test ends with the step that diverges.
            loss = float(step(next(feed), rate).item())
            if not math.isfinite(loss):
                break
            rates.append(rate)
            losses.append(loss)
            smooth = averaged(rates, losses)
            fall = smooth[0] - min(smooth)
            if len(smooth) > num_steps // 3 and smooth[-1] - min(smooth) > _DIVERGED * fall:
                break
    write_answer(answer, {RATE: rates, LOSS: losses})


if __name__ == "__main__":
    run_process(lambda task, answer: measure(MeasureTask.read(task), answer))
