"""Text for a terminal, as plain lines: nothing in it is an order, and nothing that is meant to be copied is broken.

Terminals of LANG=C, batch systems and old log files show ASCII alone.
"""

from __future__ import annotations

import codecs
import textwrap
from typing import TextIO

_ASCII = str.maketrans(
    {"×": "x", "±": "+-", "…": "...", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "µ": "u", "≥": ">=",
     "≤": "<=", "→": "->", "·": "-", "²": "^2", "³": "^3", "\N{NO-BREAK SPACE}": " "}
)  # fmt: skip
_HANDLER = "voxelocity.plain"


def printable(text: str) -> str:
    """The text without what a terminal would take for an order: a blank for each space, "?" for what has no shape."""
    return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " if c.isspace() else "?" for c in text)


def printable_lines(text: str) -> str:
    """As `printable`, but line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


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


def as_ascii(text: str) -> str:
    """The text in ASCII: signs in the way they are typed, a question mark for any other letter."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def never_fails(stream: TextIO) -> None:
    """From now on the stream writes what its encoding lacks as `as_ascii` does, where it raised an error."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error(_HANDLER, _replaced)
        reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return as_ascii(error.object[error.start : error.end]), error.end
