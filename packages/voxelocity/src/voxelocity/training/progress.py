"""The training as the user sees it: a bar or lines in the terminal, a picture in the folder, phases for a monitor."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from voxelocity.report import RunFacts, render_progress_png
from voxelocity.report.facts import step_record, validation_record
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.events import EventLog
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import count_text, dice_text, duration_text, share_text
from voxelocity_observe.spans import report_ended_span

_PICTURE_PERIOD_S = 60.0
_MOST_POINTS = 2000
_SHORTEST_EPOCH_S = 1.0


class TerminalProgress(WorkProgress):
    """Loss, last Dice, images per second, share of time spent waiting for data, and time left.

    Args:
        console: where it is shown.
        clock: returns seconds.
        target_dice: that ends the training; 0 for none.
        unit: what a batch has several of.
    """

    def __init__(self, console: Console, clock: Clock, *, target_dice: float = 0.0, unit: str = "images") -> None:
        super().__init__(console, "the first step", clock=clock)
        self._target_dice, self._unit, self._dice = target_dice, unit, ""

    def show_steps(
        self, *, step: int, loss: float, images_per_s: float, wait_share: float, progress: float, remaining_s: float
    ) -> None:
        """Shows the last steps. With a target, the time left is the most that it can be."""
        left = f"{duration_text(remaining_s)} left"
        end = f"until Dice {self._target_dice:g}, at most {left}" if self._target_dice else left
        self.update(
            progress,
            f"step {step}  loss {loss:.3f}{self._dice}  {images_per_s:.1f} {self._unit}/s  "
            f"waiting {share_text(wait_share)}  {end}",
        )

    def show_validation(self, step: int, mean_dice: float, is_best: bool, *, num_cases: int, num_absent: int) -> None:
        """Shows the result of an intermediate validation, with the number of classes in none of its cases."""
        self._dice = f"  Dice {dice_text(mean_dice)} ({count_text(num_cases, 'case')}, step {step})"
        if not self.is_bar:
            self.console.print(
                f"      step {step}  validation Dice {dice_text(mean_dice)} of {count_text(num_cases, 'case')}"
                + (" (best so far)" if is_best else "")
                + (f", {count_text(num_absent, 'class', 'classes')} found in none of its cases" if num_absent else ""),
                highlight=False,
                soft_wrap=True,
            )


class ProgressPicture:
    """Keeps the curves of a run and draws them after validations, in a separate thread, at most once a minute.

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

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        if self._drawing is not None:
            self._drawing.result()

    def draw(self) -> None:
        """Starts a picture of the events up to now, unless one was started less than a minute ago."""
        now_s = self._clock()
        is_soon = self._drawn_at_s is not None and now_s - self._drawn_at_s < _PICTURE_PERIOD_S
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
                self._steps.append(step_record(event))
                if len(self._steps) > _MOST_POINTS:
                    # The picture is narrower than this, and a run may last weeks.
                    del self._steps[1:-1:2]
            elif event["event"] == "validation":
                self._validations.append(validation_record(event))
                if len(self._validations) > _MOST_POINTS:
                    best = max(
                        (v for v in self._validations if math.isfinite(v.mean_dice)),
                        key=lambda record: record.mean_dice,
                        default=None,
                    )
                    self._validations = [v for i, v in enumerate(self._validations) if i % 2 == 0 or v is best]


class EpochPhases:
    """Records each pass over the cases as a phase, or several together if one takes less than a second.

    Args:
        clock: seconds as `time.perf_counter` counts them.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._first = self._last = -1
        self._start_s = 0.0

    def at(self, epoch: int) -> None:
        """A step of this epoch begins."""
        if epoch == self._last:
            return
        now_s = self._clock()
        if self._last < 0:
            self._first, self._start_s = epoch, now_s
        elif now_s - self._start_s >= _SHORTEST_EPOCH_S:
            self._report(now_s)
            self._first, self._start_s = epoch, now_s
        self._last = epoch

    def end(self) -> None:
        """The last step is done."""
        if self._last >= 0:
            self._report(self._clock())
        self._last = -1

    def _report(self, now_s: float) -> None:
        name = f"epoch {self._first}" if self._first == self._last else f"epochs {self._first} to {self._last}"
        report_ended_span(name, start_s=self._start_s, seconds=now_s - self._start_s, color="steelblue")
