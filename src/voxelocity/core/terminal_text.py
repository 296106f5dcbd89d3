"""Text for a terminal, as plain lines: nothing in it is an order, and nothing that is meant to be copied is broken."""

from __future__ import annotations

import textwrap


def printable(text: str) -> str:
    """The text without what a terminal would take for an order: a blank for each space, "?" for what has no shape."""
    return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " if c.isspace() else "?" for c in text)


def wrapped(text: str, columns: int, *, first: str = "", rest: str = "") -> list[str]:
    """The text in lines of `columns` at the most. A word that is longer, such as a path, has a line of its own.

    Args:
        text: without orders, see `printable`.
        columns: of a line, with what stands before it.
        first: stands before the first line.
        rest: stands before each further one.
    """
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
