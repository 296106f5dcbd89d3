"""Ours and the peers, alternating: the one way two things are compared here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["larger", "smaller"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the things compared.

    Attributes:
        name: as shown.
        once: one repeat; returns its figure in the unit of the comparison. None where it cannot be run here.
        note: settings that were used, or why it cannot be run ("not installed: lmdb").
    """

    name: str
    once: Callable[[], float] | None
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
    """Figures of all sides, ours first, from the same rounds.

    Attributes:
        title: what was measured, on what.
        unit: of every figure.
        better: whether larger or smaller figures are better.
        figures: one for each side.
        note: what a reader must know to judge them.
    """

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
        return {
            "title": self.title,
            "unit": self.unit,
            "better": self.better,
            "note": self.note,
            "sides": [self._side(figure) for figure in self.figures],
        }

    def _side(self, figure: Figure) -> dict[str, Any]:
        side: dict[str, Any] = {"name": figure.name, "note": figure.note, "n": len(figure.values)}
        if figure.values:
            side |= {"median": figure.median, "low": min(figure.values), "high": max(figure.values)}
        ratios = self.ratios(figure)
        if ratios:
            names = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
            side["ours_better_by"] = {key: value if value < float("inf") else None for key, value in names.items()}
        return side


def compare(
    title: str, unit: str, better: Better, sides: Sequence[Side], *, repeats: int, warmup: int = 1, note: str = ""
) -> Comparison:
    """Runs every side once a round, so that other work on the machine affects all of them alike.

    Each round begins with another side, so that no side always comes after the same one.

    Args:
        title: of the comparison.
        unit: of the figures.
        better: which figures are better.
        sides: ours first.
        repeats: rounds that count.
        warmup: rounds before them that do not.
        note: for the reader.
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
    return Comparison(title=title, unit=unit, better=better, figures=figures, note=note)
