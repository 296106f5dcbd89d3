"""The training as the user sees it: a bar in a terminal, a line now and then in a file or pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from voxelocity.core.quantities import count_text
from voxelocity.observe import Clock
from voxelocity.report import duration_text, share_text
from voxelocity.training.loop import LogInterval


class TerminalProgress:
    """Loss, images per second, share of time spent waiting for data, and time left."""

    def __init__(self, console: Console, clock: Clock, *, target_dice: float = 0.0, line_every_s: float = 10.0) -> None:
        self._target_dice = target_dice
        self._console = console
        self._clock = clock
        self._line_every_s = line_every_s
        self._line_at = clock()
        self._dice = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("training"), BarColumn(bar_width=None), TextColumn("{task.fields[facts]}"),
                console=console, transient=True, refresh_per_second=4,
            )  # fmt: skip
            self._task = self._bar.add_task("training", total=1.0, facts="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, window: LogInterval, *, progress: float, remaining_s: float) -> None:
        """Shows the last steps."""
        facts = (
            f"step {window.step}  loss {window.loss:.3f}{self._dice}  "
            f"{window.num_images / max(window.seconds, 1e-9):.1f} images/s  "
            f"waiting {share_text(window.wait_s / max(window.seconds, 1e-9))}  {self._end(remaining_s)}"
        )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=progress, facts=facts)
        elif self._clock() - self._line_at >= self._line_every_s:
            self._line_at = self._clock()
            self._console.print(f"{progress:4.0%}  {facts}", highlight=False, soft_wrap=True)

    def _end(self, remaining_s: float) -> str:
        """What is left to do: time, or a target, for which the time is unknown."""
        return f"until Dice {self._target_dice:g}" if self._target_dice else f"{duration_text(remaining_s)} left"

    def validated(self, step: int, mean_dice: float, is_best: bool, *, num_absent: int = 0) -> None:
        """Shows the result of an intermediate validation, with the number of classes in none of its cases."""
        self._dice = f"  Dice {mean_dice:.3f} at step {step}"
        if self._bar is None:
            self._console.print(
                f"      step {step}  validation Dice {mean_dice:.3f}{' (best so far)' if is_best else ''}"
                + (f", {count_text(num_absent, 'class', 'classes')} found in none of its cases" if num_absent else ""),
                highlight=False,
            )
