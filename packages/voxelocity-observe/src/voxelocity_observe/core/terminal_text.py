"""Text for a terminal, as plain lines: it contains no control codes and never breaks text that users may copy.

Terminals with LANG=C, batch systems and old log files show only ASCII.
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
    """The text without control codes: a blank for each white space, "?" for other unprintable characters."""
    return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " if c.isspace() else "?" for c in text)


def printable_lines(text: str) -> str:
    """As `printable`, but line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def wrapped(text: str, columns: int, *, first: str = "", rest: str = "") -> list[str]:
    """The text in lines of at most `columns` characters. A longer word, such as a path, gets its own line.

    Args:
        text: without control codes, see `printable`.
        columns: of a line, including its indent.
        first: the indent of the first line.
        rest: the indent of each further line.
    """
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def as_ascii(text: str) -> str:
    """The text in ASCII: symbols as they are typed, a question mark for any other letter."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def replace_unencodable(stream: TextIO) -> None:
    """Makes the stream write characters that its encoding lacks as `as_ascii` does, instead of raising an error."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error(_HANDLER, _replaced)
        reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return as_ascii(error.object[error.start : error.end]), error.end
