"""The pieces that pages are made of, and the one way in which a template becomes text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from voxelocity.report.quantities import dotted, value_text
from voxelocity.report.summary import OTHER, TimeShare

if TYPE_CHECKING:
    from jinja2 import Environment

_NUM_BAR_COLOURS = 8
_BEFORE_UNIT_OR_SMALLER_PART = re.compile(
    r"(?<=\d) (?=(?:%|ms|s|min|h|d|mm|times|[KMGT]iB)(?!\w))|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)"
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text. The first cell of a row is its head.

    Attributes:
        caption: what the table shows; also its name for screen readers.
        heads: one per column.
        rows: one cell per column each.
        text_columns: columns besides the first that hold words, not numbers.
        marked_columns: columns that stand out.
        shares: of each row, 0 to 1, drawn as a bar beside its head; none if empty.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset()
    marked_columns: frozenset[int] = frozenset()
    shares: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Card:
    """A key figure, with its name and a few words on what it means."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A name and the colour that stands for it, as a CSS value."""

    name: str
    colour: str
    is_dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """One piece of a stacked bar, in per cent of it, with the style that colours it."""

    name: str
    start: float
    width: float
    style: str


def bar_parts(shares: Sequence[TimeShare]) -> list[BarPart]:
    """The pieces of a stacked bar: the largest in the leading colour, the remainder in grey."""
    named = [part for part in shares if part.name != OTHER]
    largest = max(named, key=lambda part: part.share, default=None)
    parts, start, colour = list[BarPart](), 0.0, 1
    for part in shares:
        if part.name == OTHER or part is largest:
            style = "part-1" if part is largest else "part-other"
        else:
            colour = colour + 1 if colour < _NUM_BAR_COLOURS else 2
            style = f"part-{colour}"
        parts.append(BarPart(name=part.name, start=start, width=part.share * 100.0, style=style))
        start += part.share * 100.0
    return parts


def unbroken(text: str) -> str:
    """The text with its numbers tied to their units, so that no line ends between them."""
    return _BEFORE_UNIT_OR_SMALLER_PART.sub("\N{NO-BREAK SPACE}", text)


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
    return environment
