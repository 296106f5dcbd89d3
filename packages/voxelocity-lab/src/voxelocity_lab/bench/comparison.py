"""Ours and the peers, alternating: the one way two things are compared here, and the record that is kept of it."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.quantities import count_text, factor_text, figure_text
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document.blocks import Card, Code, Document, Section, Table, Text, below_heading
from voxelocity_observe.document.html import write_page
from voxelocity_observe.document.settings import key_value_table, machine_table

Better = Literal["larger", "smaller"]
Once = Callable[[], float]
"""One repeat; returns its figure in the unit of the comparison."""

# A factor below it is worse by more than its rounding.
_EQUAL = 0.95


@dataclass(frozen=True, kw_only=True)
class BenchSide:
    """One of the things compared; `once` is None where it cannot be run here, and `note` then says why."""

    name: str
    once: Once | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What one side came to: a figure for each round, none where it was not run."""

    name: str
    note: str
    values: tuple[float, ...]

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Figures of all sides, ours first, from the same rounds; `note` is what a reader must know to judge them."""

    title: str
    unit: str
    better: Better
    figures: tuple[Figure, ...]
    note: str = ""

    def ratios(self, figure: Figure) -> tuple[float, ...]:
        """How many times better ours is than this side, round by round; empty where a side was not run."""
        ours = self.figures[0]
        # A side of one round is a constant, such as bytes in a file.
        rounds = max(len(ours.values), len(figure.values))
        if not ours.values or not figure.values or figure is ours:
            return ()
        pairs = [(ours.values[i % len(ours.values)], figure.values[i % len(figure.values)]) for i in range(rounds)]
        if self.better == "smaller":
            pairs = [(theirs, mine) for mine, theirs in pairs]
        return tuple(top / bottom if bottom else float("inf") for top, bottom in pairs)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON, which knows no infinity: such a ratio is null."""
        sides = [self._side(figure) for figure in self.figures]
        return {"title": self.title, "unit": self.unit, "better": self.better, "note": self.note, "sides": sides}

    def _side(self, figure: Figure) -> dict[str, Any]:
        side = {"name": figure.name, "note": figure.note, "n": len(figure.values), **spread(figure.values)}
        if ratios := self.ratios(figure):
            finite = {key: value if value < float("inf") else None for key, value in spread(ratios).items()}
            side["ours_better_by"] = finite
        return side


def compare(
    title: str, unit: str, sides: Sequence[BenchSide], *, repeats: int, warmup: int = 1, note: str = ""
) -> Comparison:
    """Runs every side, ours first, once a round, so that other work on the machine affects all of them alike.

    Each round begins with another side, so that no side always comes after the same one. The first `warmup` rounds do
    not count. Of rates (a unit that ends in "/s") larger is better, of everything else smaller.
    """
    assert repeats >= 1, f"repeats {repeats}"
    values: dict[str, list[float]] = {side.name: [] for side in sides}
    assert len(values) == len(sides), "two sides have one name"
    for number in range(-warmup, repeats):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            if side.once is None:
                continue
            value = side.once()
            if number >= 0:
                values[side.name].append(value)
    figures = tuple(Figure(name=side.name, note=side.note, values=tuple(values[side.name])) for side in sides)
    better: Better = "larger" if unit.endswith("/s") else "smaller"
    return Comparison(title=title, unit=unit, better=better, figures=figures, note=note)


def _load_average() -> float | None:
    return os.getloadavg()[2] if hasattr(os, "getloadavg") else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one benchmark came to, as plain data and as a document.

    Attributes:
        name: of the benchmark and, after "bench_", of its files, where "-" becomes "_".
        command: that repeats it.
        settings: what was measured, plain values.
        comparisons: its figures.
        details: what else a reader may want to look at, plain values.
        page: shown in place of a page of the comparisons.
        date: on which it was run, YYYY-MM-DD.
        environment: versions and machine, as `observe.environment` gives them; with peers, their versions.
        load_average: programs that wanted a core in its last 15 minutes, itself included; None where not known.
    """

    name: str
    command: str
    settings: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    page: Document | None = None
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))
    environment: Mapping[str, Any] = field(default_factory=environment)
    load_average: float | None = field(default_factory=_load_average)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "benchmark": self.name,
            "command": self.command,
            "date": self.date,
            "environment": dict(self.environment),
            "load_average": self.load_average,
            "settings": dict(self.settings),
            "comparisons": [comparison.to_plain() for comparison in self.comparisons],
            **self.details,
        }

    def document(self) -> Document:
        """The page if there is one; else every comparison, with the factor against the best peer as its key figure."""
        if self.page is not None:
            return self.page
        cards = [card for comparison in self.comparisons if (card := _card(comparison)) is not None]
        ahead = sum(not card.is_worse for card in cards)
        verdict = f"Voxelocity matches or beats every peer in {ahead} of {count_text(len(cards), 'comparison')}."
        settings, machine = key_value_table("Settings", self.settings), machine_table(self.environment)
        return Document(
            kind="benchmark",
            title=self.name.replace("_", " "),
            verdict=verdict if cards else "No peer was measured.",
            cards=cards,
            sections=[
                *(comparison_section(comparison) for comparison in self.comparisons),
                Section(title="Settings", blocks=below_heading(settings)),
                Section(title="Machine", blocks=below_heading(machine)),
                Section(title="Do it again", blocks=[Code(text=self.command)]),
            ],
            footer=f"Measured on {self.date}, all sides alternating on the machine named above.",
            values=self.to_plain(),
        )

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Writes `bench_<name>.html` and `bench_<name>.json` into the folder and returns their paths.

        Raises:
            OutputError: one cannot be written.
        """
        stem = f"bench_{self.name.replace('-', '_')}"
        page = write_page(self.document(), folder / f"{stem}.html")
        content = json.dumps(self.to_plain(), indent=1, allow_nan=False) + "\n"
        # A record is shown to others: the plan in it names the cache folder, and that the user's home.
        home = json.dumps(str(Path.home()))[1:-1]
        return page, write_whole(folder / f"{stem}.json", content.replace(f'"{home}', '"~').encode())


def comparison_section(comparison: Comparison, *, ratio: str = "Ours better by") -> Section:
    """A line for each side, ours first, and the notes; `ratio` is the head of the ratios to the first side."""
    notes = [comparison.note, *(f"{figure.name}: {figure.note}" for figure in comparison.figures if figure.note)]
    ratios = [statistics.median(comparison.ratios(figure) or [math.inf]) for figure in comparison.figures]
    table = Table(
        caption=comparison.title,
        heads=("Side", comparison.unit, "Least to most", "n", ratio),
        rows=[_cells(comparison, figure) for figure in comparison.figures],
        marked_columns=frozenset({4}),
        worse_cells=frozenset((row, 4) for row, factor in enumerate(ratios) if factor < _EQUAL),
        hides_caption=True,
    )
    return Section(title=comparison.title, blocks=[table, *(Text(text=note) for note in notes if note)])


def cpu_ms(call: Callable[[], object]) -> float:
    """Milliseconds of CPU that a call takes, over all threads of the process: other programs change it little."""
    start_s = time.process_time()
    call()
    return 1000.0 * (time.process_time() - start_s)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most; empty without a value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)} if values else {}


def _card(comparison: Comparison) -> Card | None:
    """Our factor against the best of the peers, which other ways of ours are not; None if none was measured."""
    ours, *others = comparison.figures
    peers = [peer for peer in others if not peer.name.startswith("Voxelocity, ")]
    known = [peer for peer in peers if peer.median is not None and comparison.ratios(peer)]
    if ours.median is None or not known:
        return None
    best = min(known, key=lambda peer: statistics.median(comparison.ratios(peer)))
    factor = statistics.median(comparison.ratios(best))
    note = f"{best.name} {figure_text(best.median)}, ours {figure_text(ours.median)} {comparison.unit}"
    return Card(name=comparison.title, value=factor_text(factor), note=note, is_worse=factor < _EQUAL)


def _cells(comparison: Comparison, figure: Figure) -> tuple[str, ...]:
    if figure.median is None:
        return figure.name, figure_text(figure.median), "", "", ""
    ratios = comparison.ratios(figure)
    spread = f"{figure_text(min(figure.values))} to {figure_text(max(figure.values))}" if len(figure.values) > 1 else ""
    ratio = factor_text(statistics.median(ratios)) if ratios else ""
    return figure.name, figure_text(figure.median), spread, str(len(figure.values)), ratio
