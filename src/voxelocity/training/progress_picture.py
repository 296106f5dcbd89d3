"""The picture of a run in progress: drawn from its events, in a separate thread, at most once a minute."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from voxelocity.core.errors import OutputError
from voxelocity.observe import Clock, EventLog
from voxelocity.report import RunFacts, StepRecord, ValidationRecord, render_progress_png

_PERIOD_S = 60.0
_MOST_POINTS = 2000


class ProgressPicture:
    """Keeps the curves of a run and draws them after validations.

    Args:
        facts: what the run's folder says so far.
        path: of the picture.
        log: the log whose events are followed; it receives the event "picture" with the seconds a picture took.
        clock: returns seconds.
        warn: called once if the picture cannot be written.
    """

    def __init__(
        self, facts: RunFacts, path: Path, *, log: EventLog, clock: Clock, warn: Callable[[str], None]
    ) -> None:
        self._facts = facts
        self._path = path
        self._log, self._clock, self._warn = log, clock, warn
        self._steps = list(facts.steps)
        self._validations = list(facts.validations)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="picture")
        self._drawing: Future[None] | None = None
        self._drawn_at_s: float | None = None
        self._is_broken = False
        log.listen(self._add)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if self._drawing is not None:
            self._drawing.result()

    def draw(self) -> None:
        """Starts a picture of the events up to now, unless one was started less than a minute ago."""
        now_s = self._clock()
        is_soon = self._drawn_at_s is not None and now_s - self._drawn_at_s < _PERIOD_S
        if is_soon or self._is_broken or (self._drawing is not None and not self._drawing.done()):
            return
        self._drawn_at_s = now_s
        with self._lock:
            facts = replace(self._facts, steps=tuple(self._steps), validations=tuple(self._validations))
        self._drawing = self._pool.submit(self._draw, replace(facts, last_event_s=self._log.elapsed_s()))

    def _draw(self, facts: RunFacts) -> None:
        start_s = self._clock()
        try:
            render_progress_png(facts, self._path)
        except OutputError as error:
            self._is_broken = True
            self._warn(f"{error}; the run continues without its picture")
            return
        self._log.write("picture", seconds=self._clock() - start_s)

    def _add(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            if event["event"] == "steps":
                self._steps.append(_point(event))
                if len(self._steps) > _MOST_POINTS:
                    # The picture is narrower than this, and a run may last weeks.
                    del self._steps[1:-1:2]
            elif event["event"] == "validation":
                self._validations.append(_validation(event))
                if len(self._validations) > _MOST_POINTS:
                    best = max(
                        (v for v in self._validations if math.isfinite(v.mean_dice)),
                        key=lambda record: record.mean_dice,
                        default=None,
                    )
                    self._validations = [v for i, v in enumerate(self._validations) if i % 2 == 0 or v is best]


def _point(event: Mapping[str, Any]) -> StepRecord:
    """The event without what the picture does not show."""
    names = ("time_s", "step", "epoch", "loss", "learning_rate", "num_steps", "num_images", "seconds", "wait_s")
    return StepRecord(**{name: _number(event[name]) for name in names})


def _validation(event: Mapping[str, Any]) -> ValidationRecord:
    names = ("time_s", "step", "seconds", "mean_dice", "is_best")
    dice = {name: _number(value) for name, value in event["dice"].items()}
    return ValidationRecord(**{name: _number(event[name]) for name in names}, dice=dice)


def _number(value: Any) -> Any:
    """The number; NaN for None, because the event log writes null for a number that is not finite."""
    return float("nan") if value is None else value
