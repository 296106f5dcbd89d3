"""A table of evidence as lines of text: columns where they fit, otherwise one value per line."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from voxelocity.core.terminal_text import printable, wrapped
from voxelocity.report.views import Table

_GAP = 2


def table_lines(table: Table, columns: int) -> list[Text]:
    """The table in lines of at most `columns`, its caption first; a longer word gets its own line."""
    rows = [[printable(cell) for cell in row] for row in table.rows]
    heads = [printable(head) for head in table.heads]
    widths = [max(cell_len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    fits = sum(widths) + _GAP * (len(widths) - 1) <= columns
    body = _aligned(heads, rows, widths, table) if fits else _listed(heads, rows, columns)
    caption = _wrapped(table.caption, columns, indent="", hanging="", style="underline")
    return [*caption, *body]


def _aligned(heads: list[str], rows: list[list[str]], widths: list[int], table: Table) -> Iterator[Text]:
    for number, row in enumerate([heads, *rows]):
        cells = [
            _padded(cell, width, is_left=column == 0 or column in table.text_columns)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text((" " * _GAP).join(cells).rstrip(), style="dim" if number == 0 else "")


def _listed(heads: list[str], rows: list[list[str]], columns: int) -> Iterator[Text]:
    if len(heads) == 2:
        for name, cell in rows:
            yield from _wrapped(f"{name}: {cell}", columns, indent="", hanging="  ")
        return
    for row in rows:
        yield from _wrapped(row[0], columns, indent="", hanging="  ")
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell:
                yield from _wrapped(f"{head}: {cell}", columns, indent="  ", hanging="    ")


def _wrapped(text: str, columns: int, *, indent: str, hanging: str, style: str = "") -> Iterator[Text]:
    return (Text(line, style=style) for line in wrapped(text, columns, first=indent, rest=hanging))


def _padded(cell: str, width: int, *, is_left: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if is_left else blanks + cell
