"""A document for a terminal: tables that stay readable at 60 columns, in a pipe and without color.

Meaning is never in color alone, and text from data is never read as markup.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from voxelocity_observe.core.terminal_text import printable, wrapped
from voxelocity_observe.document import blocks
from voxelocity_observe.document.html import unbroken

_INDENT_COLUMNS = 4
_GAP_COLUMNS = 2


def document_view(shown: blocks.Document) -> RenderableType:
    """A document in short: the verdict, the notices, and the tables, findings and sentences of its sections."""
    lines: list[RenderableType] = [Wrapped(shown.verdict, style="bold")]
    lines += [Wrapped(f"note: {notice}") for notice in shown.notices]
    for section in shown.sections:
        if not section.is_detail and (views := _section_views(section)):
            lines += ["", *views]
    return Group(*lines)


def section_view(section: blocks.Section) -> RenderableType:
    """A section of a document: its title, tables, findings and sentences."""
    return Group(*_section_views(section))


def _section_views(section: blocks.Section) -> list[RenderableType]:
    views = [view for block in section.blocks for view in _block_views(block)]
    return [Wrapped(section.title, style="bold"), *views] if views else []


def _block_views(block: blocks.Block) -> list[RenderableType]:
    """What a terminal shows of a block; nothing of charts, pictures, hints and what is folded."""
    match block:
        case blocks.Table():
            return [TableView(block)]
        case blocks.TimeBars(table=blocks.Table() as table):
            return [TableView(table)]
        case blocks.Text(is_hint=False):
            return [Wrapped(block.text)]
        case blocks.FindingCard():
            return [Wrapped(f"{block.code} {block.title}; {block.gain}")]
    return []


@dataclass(frozen=True)
class TableView:
    """A table of a document, as wide as the terminal."""

    table: blocks.Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from table_lines(self.table, options.max_width)


def table_lines(table: blocks.Table, columns: int) -> list[Text]:
    """The table in lines of at most `columns`, its caption first; a longer word gets its own line. A table that is too
    wide has one value per line.
    """
    rows = [[printable(cell) for cell in row] for row in table.rows]
    heads = [printable(head) for head in table.heads]
    widths = [max(cell_len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    fits = sum(widths) + _GAP_COLUMNS * (len(widths) - 1) <= columns
    body = _aligned(heads, rows, widths, table) if fits else _listed(heads, rows, columns)
    caption = prose(table.caption, columns, style="underline")
    return [*([] if table.hides_caption else caption), *body]


def _aligned(heads: list[str], rows: list[list[str]], widths: list[int], table: blocks.Table) -> Iterator[Text]:
    for number, row in enumerate([heads, *rows]):
        cells = [
            _padded(cell, width, is_left=column == 0 or column in table.text_columns)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text((" " * _GAP_COLUMNS).join(cells).rstrip(), style="dim" if number == 0 else "")


def _listed(heads: list[str], rows: list[list[str]], columns: int) -> Iterator[Text]:
    # The heads of cells stand before each; that of the rows says once what they are, such as "worst cases".
    if len(heads) == 2:
        yield from prose(": ".join(filter(None, heads)), columns, hanging="  ", style="dim")
        for name, cell in rows:
            yield from prose(f"{name}: {cell}", columns, hanging="  ")
        return
    yield from prose(heads[0], columns, style="dim")
    for row in rows:
        yield from prose(row[0], columns, hanging="  ")
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell:
                yield from prose(f"{head}: {cell}", columns, indent="  ", hanging="  ")


def prose(text: str, columns: int, *, indent: str = "", hanging: str = "", style: str = "") -> Iterator[Text]:
    """The text in lines of at most `columns`, without control codes, no number apart from its unit.

    `indent` is that of all lines, `hanging` comes on top of it after the first.
    """
    lines = wrapped(unbroken(printable(text)), columns, first=indent, rest=indent + hanging)
    return (Text(line.replace("\N{NO-BREAK SPACE}", " "), style=style, overflow="fold") for line in lines)


def _padded(cell: str, width: int, *, is_left: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if is_left else blanks + cell


@dataclass(frozen=True)
class Wrapped:
    """Words wrapped without the blanks that fill up lines in a pipe."""

    words: str
    indent_columns: int = 0
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from prose(self.words, options.max_width, indent=" " * self.indent_columns, style=self.style)


def indented(words: str) -> Wrapped:
    """Words below a head."""
    return Wrapped(words, indent_columns=_INDENT_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class WrappedRows:
    """Rows below each other whose cells are wrapped. Every letter is shown at any width: longer words are broken.

    Attributes:
        rows: of cells.
        widths: of all columns but the last, which takes the rest.
        bold: the column that stands out.
        has_heads: whether the first row is that of the heads.
    """

    rows: Sequence[Sequence[str]]
    widths: Sequence[int]
    bold: int | None = None
    has_heads: bool = False

    def last_width(self, columns: int) -> int:
        """What a terminal of this many columns leaves to the last column."""
        return columns - sum(self.widths) - _GAP_COLUMNS * len(self.widths)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [*self.widths, max(1, self.last_width(options.max_width))]
        for number, row in enumerate(self.rows):
            cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
            for parts in itertools.zip_longest(*cells, fillvalue=""):
                line = Text(style="dim" if self.has_heads and number == 0 else "", overflow="fold")
                for column, (part, width) in enumerate(zip(parts, widths, strict=True)):
                    text = part if column == len(widths) - 1 else _padded(part, width + _GAP_COLUMNS, is_left=True)
                    line.append(text, style="bold" if column == self.bold and number >= self.has_heads else None)
                line.rstrip()
                yield line


def _broken(cell: str, columns: int) -> list[str]:
    """The cell in lines of at most `columns`."""
    words = [line for paragraph in cell.split("\n") for line in wrapped(unbroken(printable(paragraph)), columns)]
    return [part.replace("\N{NO-BREAK SPACE}", " ") for line in words for part in chop_cells(line, columns)]
