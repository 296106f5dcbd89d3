"""A page as plain data: a verdict, key figures and sections of blocks. `html` draws it, `terminal` prints tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from voxelocity_observe.core.quantities import duration_text, share_text
from voxelocity_observe.core.time_parts import OTHER, TimeShare

_VERSION = 1
# More than the stages of a run: two with one color cannot be told apart.
_NUM_COLORS = 12


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
        even_cells: likewise, of cells in marked columns that are neither better nor worse.
        shares: of each row, 0 to 1, drawn as a bar next to its head; none if empty.
        swatches: the color of each row in a bar or chart, as a CSS value; none if empty.
        has_total: whether the last row is the sum of the others.
        hides_caption: whether only screen readers get the caption, because the heading above says the same.
    """

    kind: ClassVar[str] = "table"
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset()
    marked_columns: frozenset[int] = frozenset()
    worse_cells: frozenset[tuple[int, int]] = frozenset()
    even_cells: frozenset[tuple[int, int]] = frozenset()
    shares: Sequence[float] = ()
    swatches: Sequence[str] = ()
    has_total: bool = False
    hides_caption: bool = False

    def without_caption(self) -> Table:
        """The table for a place below a heading that says the same as its caption."""
        return replace(self, hides_caption=True)


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph. Words between backticks are code.

    Attributes:
        is_hint: whether it explains what stands above, in small print.
    """

    kind: ClassVar[str] = "text"
    text: str
    is_hint: bool = False


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading below that of the section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Sentences or paths, one below the other."""

    kind: ClassVar[str] = "lines"
    lines: Sequence[str]
    are_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Code:
    """A command or a piece of a program."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A name and the color that stands for it, as a CSS value."""

    name: str
    color: str
    is_dashed: bool = False
    is_dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """One piece of a stacked bar, in percent of it, with its color as a CSS value."""

    name: str
    start: float
    width: float
    color: str


@dataclass(frozen=True, kw_only=True)
class TimeBar:
    """One of several stacked bars on one scale; `total` is the time that all of it stands for. A bar that stands alone
    has neither label nor total.
    """

    parts: Sequence[BarPart]
    label: str = ""
    total: str = ""


@dataclass(frozen=True, kw_only=True)
class TimeBars:
    """Stacked bars below each other, explained by a table or by a legend.

    Attributes:
        caption: what the times are of.
        is_dense: whether there are too many pieces to name each to screen readers and to leave gaps between them.
    """

    kind: ClassVar[str] = "time_bars"
    caption: str
    bars: Sequence[TimeBar]
    table: Table | None = None
    legend: Sequence[LegendEntry] = ()
    is_dense: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawn chart, with its description for screen readers."""

    kind: ClassVar[str] = "chart"
    title: str
    svg: str
    alt: str
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True, kw_only=True)
class SliceFilm:
    """Slices of one direction side by side, and what may be laid over them; every picture is a `data:` address.

    Attributes:
        plane: "axial", "coronal" or "sagittal"; what else distinguishes the pictures of others than slices.
        count: slices.
        ratio: width of a slice by its height, in the patient.
        image: the scan.
        layers: pictures by name: "prediction", "truth", "difference".
    """

    plane: str
    count: int
    ratio: float
    image: str
    layers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Cases to scroll through, with a choice of what lies over the scan.

    Attributes:
        figures: the films of each case, with its title.
        legend: of classes, and of differences.
        what: the pictures are, for readers without eyes.
    """

    kind: ClassVar[str] = "slices"
    figures: Sequence[tuple[str, Sequence[SliceFilm]]]
    legend: Sequence[LegendEntry]
    difference_legend: Sequence[LegendEntry] = ()
    what: str = "slices of the scan"


@dataclass(frozen=True, kw_only=True)
class FindingCard:
    """A cause and its cure.

    Attributes:
        key: names it within the page.
        code: for `voxelocity explain`.
        gain: what the cure brings.
        risk: what else it changes.
        change: code to take over; none if empty.
        where: place of the change.
    """

    kind: ClassVar[str] = "finding"
    key: str
    code: str
    title: str
    gain: str
    risk: str
    changes_results: bool
    cause: str
    evidence: Sequence[str]
    change: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Links:
    """Places on the page, each as (key, title, what to expect there)."""

    kind: ClassVar[str] = "links"
    title: str
    entries: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Blocks side by side where the screen is wide enough."""

    kind: ClassVar[str] = "pair"
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Blocks that are shown on a click."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Block]
    is_open: bool = False


Block = Table | Text | Heading | Lines | Code | TimeBars | Chart | Slices | FindingCard | Links | Pair | Folded


def fact_table(caption: str, rows: Iterable[tuple[str, str]], *, heads: tuple[str, str] = ("What", "Value")) -> Table:
    """Names with what is known of each, in words."""
    return Table(caption=caption, heads=heads, rows=list(rows), text_columns=frozenset({1}))


def record_table(
    caption: str,
    records: Sequence[Any],
    cells: Mapping[str, Callable[[Any], str]],
    *,
    words: Collection[str] = (),
    shares: Sequence[float] = (),
) -> Table:
    """A row for each record, and a column with the head of each cell; `words` are the heads of columns of text."""
    return Table(
        caption=caption,
        heads=tuple(cells),
        rows=[tuple(cell(record) for cell in cells.values()) for record in records],
        text_columns=frozenset(place for place, head in enumerate(cells) if head in words),
        shares=shares,
    )


def below_heading(table: Table) -> list[Block]:
    """The table without its caption, for a section or a fold that says the same; nothing if it has no rows."""
    return [table.without_caption()] if table.rows else []


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a heading. A section without blocks is not shown.

    Attributes:
        key: names it within the page; none if empty.
        is_detail: whether a terminal, where space is short, leaves it to the page.
    """

    title: str
    blocks: Sequence[Block]
    key: str = ""
    is_detail: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """A key figure, with its name and a few words on what it means."""

    name: str
    value: str
    note: str = ""
    is_worse: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """What is known of a run, a record, a diagnosis or a benchmark, or of two of them, for any reader.

    Attributes:
        kind: what it is about, as "training report".
        title: heading.
        verdict: one or two sentences that say what was found.
        status: "finished", "unfinished", "interrupted"; none if empty.
        summary: what was done, where the verdict does not say it.
        notices: what to know before believing the figures.
        lead: blocks above the key figures.
        cards: key figures.
        sections: in the order of questions.
        footer: what it was made from. Words between backticks are code.
        values: the figures as plain data, for programs. None is unknown; within a version keys are only added.
    """

    kind: str
    title: str
    verdict: str
    status: str = ""
    summary: str = ""
    notices: Sequence[str] = ()
    lead: Sequence[Block] = ()
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    footer: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """How notebooks show it."""
        from voxelocity_observe.document.html import embedded

        return embedded(self)

    def to_plain(self) -> dict[str, Any]:
        """Plain data for `json.dump`: what it is, the verdict and the notices in words, and `values`."""
        words = {"title": self.title, "verdict": self.verdict, "notices": list(self.notices)}
        return {"format": f"voxelocity {self.kind}", "version": _VERSION, **words, **self.values}


def time_split(caption: str, shares: Sequence[TimeShare], *, colors: Mapping[str, str] | None = None) -> TimeBars:
    """One bar of a time and its parts, with their table; `colors` of the parts are CSS values, chosen if not given."""
    known = _colors([shares]) if colors is None else colors
    rows = [(part.name, duration_text(part.seconds), share_text(part.share)) for part in shares]
    total = (
        "sum",
        duration_text(sum(share.seconds for share in shares)),
        share_text(sum(share.share for share in shares)),
    )
    table = Table(
        caption=caption,
        heads=("Part", "Time", "Share"),
        rows=[*rows, total],
        swatches=[known[part.name] for part in shares],
        has_total=True,
    )
    bars = bars_on_one_scale({"": shares}, known, {"": ""}) if shares else []
    return TimeBars(caption=caption, bars=bars, table=table)


def side_by_side(caption: str, splits: Mapping[str, Sequence[TimeShare]]) -> TimeBars:
    """Stacked bars on one scale, the longest filling the width, and one color for each name in all of them."""
    totals_s = {label: sum(part.seconds for part in parts) for label, parts in splits.items()}
    colors = _colors(splits.values())
    bars = bars_on_one_scale(splits, colors, {label: duration_text(total_s) for label, total_s in totals_s.items()})
    by_name = {label: {part.name: part for part in parts} for label, parts in splits.items()}
    rows = [[name, *(text for found in by_name.values() for text in _part_cells(found.get(name)))] for name in colors]
    total = ["sum", *(text for label in splits for text in (duration_text(totals_s[label]), ""))]
    heads = ["Part", *(head for label in splits for head in (label, "Share"))]
    table = Table(caption=caption, heads=heads, rows=[*rows, total], swatches=list(colors.values()), has_total=True)
    return TimeBars(caption=caption, bars=bars, table=table)


def bars_on_one_scale(
    splits: Mapping[str, Sequence[TimeShare]], colors: Mapping[str, str], totals: Mapping[str, str]
) -> list[TimeBar]:
    """A bar for each split, the longest filling the width; `totals` say what the whole of each bar stands for."""
    longest_s = max((sum(part.seconds for part in parts) for parts in splits.values()), default=0.0) or 1.0
    bars = []
    for label, parts in splits.items():
        pieces, start = list[BarPart](), 0.0
        for part in parts:
            width = part.seconds / longest_s * 100.0
            pieces.append(BarPart(name=part.name, start=start, width=width, color=colors[part.name]))
            start += width
        bars.append(TimeBar(label=label, total=totals[label], parts=pieces))
    return bars


def _colors(splits: Iterable[Sequence[TimeShare]]) -> dict[str, str]:
    """A color for each name: the leading one for what takes most time over all bars, grey for the remainder."""
    seconds: dict[str, float] = {}
    for parts in splits:
        for part in parts:
            seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    largest = max((name for name in seconds if name != OTHER), key=lambda name: seconds[name], default=None)
    rest = [name for name in seconds if name not in (OTHER, largest)]
    chosen = {name: f"var(--part-{index % (_NUM_COLORS - 1) + 2})" for index, name in enumerate(rest)}
    special = {OTHER: "var(--part-other)", largest: "var(--part-1)"}
    # The remainder comes last, whichever bar named it first.
    names = [*(name for name in seconds if name != OTHER), *(name for name in seconds if name == OTHER)]
    return {name: special.get(name) or chosen[name] for name in names}


def _part_cells(part: TimeShare | None) -> tuple[str, str]:
    return ("", "") if part is None else (duration_text(part.seconds), share_text(part.share))
