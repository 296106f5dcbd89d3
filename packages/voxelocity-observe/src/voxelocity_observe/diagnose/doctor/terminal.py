"""Prints the check-up in a terminal: readable at 60 columns, in a pipe, without color and in plain ASCII.

Not with `report`, whose import needs numpy: a broken numpy is one of the doctor's findings.
"""

from __future__ import annotations

import textwrap
from itertools import groupby

from rich.console import Console
from rich.text import Text

from voxelocity_observe.core.terminal_text import printable, wrapped
from voxelocity_observe.diagnose.doctor.records import CheckUp, Level

_STYLES: dict[Level, str] = {
    "ok": "green",
    "missing": "magenta",
    "note": "cyan",
    "warning": "yellow",
    "problem": "bold red",
}
# Longer lines are hard to read, however wide the terminal is.
_MAX_COLUMNS = 110


def show(check_up: CheckUp, console: Console) -> None:
    """Prints verdict, lines, and last the three that matter. Levels are words; color only repeats them."""
    # The last column stays free: some terminals break a full line.
    columns = max(40, min(console.width - 1, _MAX_COLUMNS))
    encoding = console.encoding or "ascii"
    lines = [Text(line, style="bold") for line in textwrap.wrap(check_up.verdict, columns)]
    for section, checks in groupby(check_up.checks, key=lambda check: check.section):
        lines += [Text(), Text(section, style="bold")]
        for check in checks:
            found = check.found if check.found.startswith("=") else f": {check.found}"
            first, *rest = _wrapped(f"{check.name}{found}", f"  {check.level:<9}", columns)
            lines += [Text.assemble("  ", (check.level, _STYLES[check.level]), first[2 + len(check.level) :])]
            for label, words in (("costs: ", check.costs), ("do:    ", check.cure), ("see:   ", check.source)):
                rest += _wrapped(words, f"{'':<11}{label}", columns)
            lines += map(Text, rest)
    lines.append(Text())
    lines += [Text(line, style="bold") for text in check_up.in_short for line in wrapped(text, columns, rest="  ")]
    for line in lines:
        line.plain = printable(line.plain).encode(encoding, errors="replace").decode(encoding)
        # A command that is longer than a line stays in one piece, so that you can copy it.
        console.print(line, soft_wrap=True, highlight=False)


def _wrapped(words: str, head: str, columns: int) -> list[str]:
    return wrapped(words, columns, first=head, rest=" " * len(head))
