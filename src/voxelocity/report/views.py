"""The pieces that pages are made of, and the one way a template becomes text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from voxelocity.core.quantities import dotted, duration_text, share_text, value_text
from voxelocity.core.time_parts import OTHER, TimeShare

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_NUM_BAR_COLORS = 8
_BEFORE_UNIT_OR_SMALLER_PART = re.compile(
    r"(?<=\d) (?=(?:%|ms|s|min|h|d|mm|times|[KMGT]iB)(?!\w))|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)"
)
_BETWEEN_NAMES = re.compile(r"(?<=\w[./_])(?=[A-Za-z])|(?<=/)(?=[A-Za-z])")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text. The first cell of a row is its head.

    Attributes:
        caption: what the table shows; also its name for screen readers.
        heads: one per column.
        rows: one cell per column each.
        text_columns: columns besides the first that hold words, not numbers.
        marked_columns: columns that stand out.
        worse_cells: (row, column) of cells whose value is worse than what it is compared with.
        shares: of each row, 0 to 1, drawn as a bar next to its head; none if empty.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset()
    marked_columns: frozenset[int] = frozenset()
    worse_cells: frozenset[tuple[int, int]] = frozenset()
    shares: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """Tables under a heading of their own, with a sentence before and one in small print after them."""

    title: str
    tables: Sequence[Table]
    text: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A key figure, with its name and a few words on what it means."""

    name: str
    value: str
    note: str = ""
    is_worse: bool = False


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A name and the color that stands for it, as a CSS value."""

    name: str
    color: str
    is_dashed: bool = False
    is_dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """One piece of a stacked bar, in per cent of it, with the style that colors it."""

    name: str
    start: float
    width: float
    style: str


@dataclass(frozen=True, kw_only=True)
class TimeBar:
    """One of several stacked bars on one scale, with the time that the whole of it stands for."""

    label: str
    total: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True, kw_only=True)
class TimeBars:
    """Stacked bars below each other and their table, whose last row is the sum; a style for each row above it."""

    bars: tuple[TimeBar, ...]
    table: Table
    styles: tuple[str, ...]


def bar_parts(shares: Sequence[TimeShare]) -> list[BarPart]:
    """The pieces of a stacked bar: the largest in the leading color, the remainder in grey."""
    named = [part for part in shares if part.name != OTHER]
    largest = max(named, key=lambda part: part.share, default=None)
    parts, start, color = list[BarPart](), 0.0, 1
    for part in shares:
        if part.name == OTHER or part is largest:
            style = "part-1" if part is largest else "part-other"
        else:
            color = color + 1 if color < _NUM_BAR_COLORS else 2
            style = f"part-{color}"
        parts.append(BarPart(name=part.name, start=start, width=part.share * 100.0, style=style))
        start += part.share * 100.0
    return parts


def side_by_side(caption: str, splits: Mapping[str, Sequence[TimeShare]]) -> TimeBars:
    """Stacked bars on one scale, the longest filling the width, and one color for each name in all of them.

    Args:
        caption: what the times are of.
        splits: what each bar is called, and its pieces.
    """
    totals_s = {label: sum(part.seconds for part in parts) for label, parts in splits.items()}
    longest_s = max(totals_s.values(), default=0.0) or 1.0
    styles = _styles(splits.values())
    bars = []
    for label, parts in splits.items():
        pieces, start = [], 0.0
        for part in parts:
            width = part.seconds / longest_s * 100.0
            pieces.append(BarPart(name=part.name, start=start, width=width, style=styles[part.name]))
            start += width
        bars.append(TimeBar(label=label, total=duration_text(totals_s[label]), parts=tuple(pieces)))
    by_name = {label: {part.name: part for part in parts} for label, parts in splits.items()}
    rows = [[name, *(text for found in by_name.values() for text in _part_cells(found.get(name)))] for name in styles]
    total = ["sum", *(text for label in splits for text in (duration_text(totals_s[label]), ""))]
    heads = ["Part", *(head for label in splits for head in (label, "Share"))]
    table = Table(caption=caption, heads=heads, rows=[*rows, total])
    return TimeBars(bars=tuple(bars), table=table, styles=tuple(styles.values()))


def _styles(splits: Iterable[Sequence[TimeShare]]) -> dict[str, str]:
    """A style for each name: the leading one for what takes most time over all bars, grey for the remainder."""
    seconds: dict[str, float] = {}
    for parts in splits:
        for part in parts:
            seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    largest = max((name for name in seconds if name != OTHER), key=lambda name: seconds[name], default=None)
    rest = [name for name in seconds if name not in (OTHER, largest)]
    colors = {name: f"part-{index % (_NUM_BAR_COLORS - 1) + 2}" for index, name in enumerate(rest)}
    special = {OTHER: "part-other", largest: "part-1"}
    # The remainder comes last, whichever bar named it first.
    names = [*(name for name in seconds if name != OTHER), *(name for name in seconds if name == OTHER)]
    return {name: special.get(name) or colors[name] for name in names}


def _part_cells(part: TimeShare | None) -> tuple[str, str]:
    return ("", "") if part is None else (duration_text(part.seconds), share_text(part.share))


def unbroken(text: str) -> str:
    """The text with its numbers tied to their units, so that no line ends between them."""
    return _BEFORE_UNIT_OR_SMALLER_PART.sub("\N{NO-BREAK SPACE}", text)


def breakable(text: str) -> Markup:
    """The text as HTML in which paths and dotted names may be broken between their parts, and nowhere else."""
    from markupsafe import Markup

    return Markup("<wbr>").join(_BETWEEN_NAMES.split(text))


def key_value_table(caption: str, values: Mapping[str, Any]) -> Table:
    """Nested plain values as a table of dotted keys."""
    rows = [(key, value_text(value, key)) for key, value in dotted(values).items()] if values else []
    return Table(caption=caption, heads=("Key", "Value"), rows=rows, text_columns=frozenset({1}))


def render(template: str, **context: Any) -> bytes:
    """A page as UTF-8. Every value in the context is escaped unless the template says otherwise."""
    return _environment().get_template(template).render(**context).encode("utf-8")


def in_words(key: str) -> str:
    """A key as words: "shape_voxel" is "shape (voxel)", "file_bytes" is "file size", whose value carries its unit."""
    words = re.sub(r"_(voxel|mm)(?=\.|$)", r" (\1)", key)
    words = re.sub(r"_bytes(?=\.|$)", " size", words)
    words = re.sub(r"_s(?=\.|$)", " time", words)
    return words.replace("_", " ").replace(".", " · ")


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("voxelocity.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.filters["breakable"] = breakable
    return environment
