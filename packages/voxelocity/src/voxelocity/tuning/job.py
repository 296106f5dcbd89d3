"""One tuning of our own runs, as each goal receives it: the plan, what the user asked for, and what trials may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from voxelocity.core.requests.tune import TuneRequest
from voxelocity.planning import Planned
from voxelocity.report import RunFacts
from voxelocity.tuning.task import USUAL_SCALE, MeasureTask, TrialScale, measure_task
from voxelocity.tuning.trial import TrialLimits
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.console import PlainConsole


@dataclass(frozen=True, kw_only=True)
class TuneJob:
    """What is tuned.

    Attributes:
        planned: with the plan's own settings.
        request: what the user asked for.
        limits: of each trial.
        cache: the folder in which later plans find what was found.
        run: whose plan it is, with its curves; None for a new one.
        scale: how much a trial measures.
        console: where progress is shown.
        clock: returns seconds.
    """

    planned: Planned
    request: TuneRequest
    limits: TrialLimits
    cache: Path
    run: RunFacts | None = None
    scale: TrialScale = USUAL_SCALE
    console: Console = field(default_factory=PlainConsole)
    clock: Clock = system_clock

    @property
    def keeps(self) -> bool:
        """Whether later plans take what is found by trials of whole settings."""
        return self.request.keep is not False

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def measure_task(self) -> MeasureTask:
        """What each trial measures."""
        return measure_task(self.planned, self.scale)
