"""The terminal that all commands print to: names of files, cases and classes reach it only as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from voxelocity_observe.core.terminal_text import printable_lines

# Of a line on both sides of its title.
_RULE_COLUMNS = 6


class PlainConsole(Console):
    """A rich console that treats no text as markup, an emoji code, or a control code for the terminal.

    That applies to strings, cells of tables and rich's own texts. Styles are arguments, not part of the text.

    Args:
        options: of rich's `Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def rule(self, title: Any = "", **options: Any) -> None:
        """A line with its title in the middle, or above it where the terminal is too narrow for both."""
        is_narrow = cell_len(str(title)) + _RULE_COLUMNS > self.width
        if is_narrow:
            self.print(title, style="bold")
        super().rule("" if is_narrow else title, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Done here, so that rich measures tables with the text that is shown.
        return super().render_str(printable_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Rich marks its own control codes, such as those that move the cursor.
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
