"""The bar that long work shows: in a terminal as rich draws it, in a notebook as one picture that changes."""

from __future__ import annotations

import html
import io
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

from voxelocity_observe.core.clock import Clock, system_clock

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
        self.is_shown = self._is_in_notebook or console.is_terminal
        self._clock, self._drawn_s = clock, -_NOTEBOOK_PERIOD_S
        self._cell: Any = None
        is_live = console.is_terminal and not self._is_in_notebook
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
