"""The bar that long work shows: in a terminal as rich draws it, in a notebook as one picture that changes.

In a file or a pipe, a line every few seconds takes its place.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Column

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.quantities import duration_text

_LINE_PERIOD_S = 5.0
_BAR_COLUMNS = 24
_T = TypeVar("_T")
# Seconds between two pictures of a bar in a notebook: each is a message to the browser.
_NOTEBOOK_PERIOD_S = 0.25


class PlainProgress(Progress):
    """A bar that disappears when it ends: in a terminal, or below the cell of a notebook; nothing elsewhere.

    Rich's own bar needs ipywidgets in a notebook, and starts a thread there.

    Args:
        columns: as rich takes them.
        console: where the bar is.
        clock: returns seconds.
        options: of rich's `Progress`.

    Attributes:
        is_shown: whether there is a bar; lines take its place elsewhere.
    """

    def __init__(
        self, *columns: str | ProgressColumn, console: Console, clock: Clock = system_clock, **options: Any
    ) -> None:
        self._is_in_notebook = console.is_jupyter
        # Nothing can be drawn again in a terminal without a cursor (TERM=dumb).
        is_live = console.is_terminal and not (console.is_dumb_terminal or self._is_in_notebook)
        self.is_shown = self._is_in_notebook or is_live
        self._clock, self._drawn_s = clock, -_NOTEBOOK_PERIOD_S
        self._cell: Any = None
        super().__init__(*columns, console=console, transient=True, disable=not is_live, **options)

    def start(self) -> None:
        super().start()
        if self._is_in_notebook:
            # Comes with the notebook alone.
            from IPython.display import HTML, display

            self._cell = display(HTML(self._as_html()), display_id=True)

    def stop(self) -> None:
        super().stop()
        self._draw_in_notebook("")
        self._cell = None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if self._clock() - self._drawn_s >= _NOTEBOOK_PERIOD_S:
            self._draw_in_notebook(self._as_html())

    def _draw_in_notebook(self, text: str) -> None:
        if self._cell is not None:
            from IPython.display import HTML

            self._drawn_s = self._clock()
            self._cell.update(HTML(text))

    def _as_html(self) -> str:
        file = io.StringIO()
        # Kernels set FORCE_COLOR, which would add codes for terminals.
        plain = Console(
            file=file, width=self.console.width, force_jupyter=False, force_terminal=False, color_system=None
        )
        plain.print(self.get_renderable())
        return f"<pre>{html.escape(file.getvalue())}</pre>"


class WorkProgress:
    """How far long work is, with words: next to a bar where someone watches, else in a line every few seconds.

    A narrow terminal gets several lines of words rather than a part of one.

    Args:
        console: where it is shown.
        words: until the first update.
        clock: returns seconds.

    Attributes:
        console: where it is shown.
        is_bar: whether there is a bar.
    """

    def __init__(self, console: Console, words: str = "", *, clock: Clock = system_clock) -> None:
        self.console, self._clock = console, clock
        self._began_s = self._line_at_s = clock()
        self._bar = PlainProgress(
            BarColumn(bar_width=min(_BAR_COLUMNS, console.width // 4)),
            TextColumn("{task.fields[words]}", markup=False, table_column=Column(overflow="fold")),
            console=console, clock=clock, refresh_per_second=4,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=1.0, words=words)
        self.is_bar = self._bar.is_shown

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, share: float, words: str) -> None:
        """Shows that this share of the work is done, 0 to 1."""
        self._bar.update(self._task, completed=share, words=words)
        if not self.is_bar and self._clock() - self._line_at_s >= _LINE_PERIOD_S:
            self._line_at_s = self._clock()
            self.console.print(f"{share:4.0%}  {words}", highlight=False, soft_wrap=True)

    def each(self, items: Sequence[_T], doing: str) -> Iterator[_T]:
        """The items, while it is shown which of them is worked on: "predicting piece 3 of 10"."""
        self._began_s = self._clock()
        for number, item in enumerate(items):
            share = number / len(items)
            self.update(share, f"{doing} {number + 1} of {len(items)}{self.left_text(share)}")
            yield item

    def left_text(self, share: float) -> str:
        """The time left, if the rest is like what is done; "" before the beginning and at the end."""
        return f"  {duration_text(self.elapsed_s / share * (1.0 - share))} left" if 0.0 < share < 1.0 else ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since this was made."""
        return self._clock() - self._began_s
