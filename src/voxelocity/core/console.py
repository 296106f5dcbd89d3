"""The one terminal that commands print to: names of files, cases and classes reach it as text and as nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from voxelocity.core.terminal_text import printable_lines


class PlainConsole(Console):
    """A rich console in which no text is markup, an emoji code, or an order to the terminal.

    That holds for strings, cells of tables and rich's own texts alike. Styles are given as arguments, not in the text.

    Args:
        options: of rich's `Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Here already, so that tables are measured with what is shown.
        return super().render_str(printable_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Rich's own orders, such as those that move the cursor, are marked as such.
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
