"""What a benchmark came to, as plain data and as a document."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity.bench.paired import Comparison, Figure
from voxelocity.core.quantities import NOT_AVAILABLE, count_text, factor_text
from voxelocity.core.whole_file import write_whole
from voxelocity.report.document import Card, Code, Document, Section, Table, Text, below_heading
from voxelocity.report.html import write_page
from voxelocity.report.tables import key_value_table, machine_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LARGE = 1000.0
# A factor below it is worse by more than its rounding.
_EQUAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Record:
    """One scenario, run once.

    Attributes:
        name: of the scenario.
        command: that repeats it.
        date: on which it was run, YYYY-MM-DD.
        environment: versions and machine, as `observe.environment` gives them, and the versions of the peers.
        settings: the scenario itself.
        comparisons: its figures.
        details: what else a reader may want to look at, plain values.
    """

    name: str
    command: str
    date: str
    environment: dict[str, Any]
    settings: DataclassInstance
    comparisons: tuple[Comparison, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "benchmark": self.name,
            "command": self.command,
            "date": self.date,
            "environment": self.environment,
            "settings": asdict(self.settings),
            "comparisons": [comparison.to_plain() for comparison in self.comparisons],
            **self.details,
        }

    def document(self) -> Document:
        """Every comparison, with the factor against the best of the peers as its key figure."""
        cards = [card for comparison in self.comparisons if (card := _card(comparison)) is not None]
        ahead = sum(not card.is_worse for card in cards)
        verdict = f"Voxelocity matches or beats every peer in {ahead} of {count_text(len(cards), 'comparison')}."
        settings = key_value_table("Settings", asdict(self.settings))
        return Document(
            kind="benchmark",
            title=self.name.replace("_", " "),
            verdict=verdict if cards else "No peer was measured.",
            cards=cards,
            sections=[
                *(comparison_section(comparison) for comparison in self.comparisons),
                Section(title="Settings", blocks=below_heading(settings)),
                Section(title="Machine", blocks=below_heading(machine_table(self.environment))),
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
        return write_page(self.document(), folder / f"bench_{self.name}.html"), self.write_json(folder)

    def write_json(self, folder: Path) -> Path:
        """Writes `bench_<name>.json` into the folder and returns its path.

        Raises:
            OutputError: it cannot be written.
        """
        content = json.dumps(self.to_plain(), indent=1, allow_nan=False) + "\n"
        return write_whole(folder / f"bench_{self.name}.json", content.encode())


def comparison_section(comparison: Comparison) -> Section:
    """A line for each side, ours first, and the notes."""
    notes = [comparison.note, *(f"{figure.name}: {figure.note}" for figure in comparison.figures if figure.note)]
    table = Table(
        caption=comparison.title,
        heads=("Side", comparison.unit, "Least to most", "n", "Ours better by"),
        rows=[_cells(comparison, figure) for figure in comparison.figures],
        marked_columns=frozenset({4}),
        hides_caption=True,
    )
    return Section(title=comparison.title, blocks=[table, *(Text(text=note) for note in notes if note)])


def _card(comparison: Comparison) -> Card | None:
    """Our factor against the best of the peers; None if none was measured."""
    ours, *peers = comparison.figures
    known = [peer for peer in peers if peer.median is not None and comparison.ratios(peer)]
    if ours.median is None or not known:
        return None
    best = min(known, key=lambda peer: statistics.median(comparison.ratios(peer)))
    factor = statistics.median(comparison.ratios(best))
    note = f"{best.name} {_number(best.median or 0.0)}, ours {_number(ours.median)} {comparison.unit}"
    return Card(name=comparison.title, value=factor_text(factor), note=note, is_worse=factor < _EQUAL)


def _cells(comparison: Comparison, figure: Figure) -> tuple[str, ...]:
    if figure.median is None:
        return figure.name, NOT_AVAILABLE, "", "", ""
    ratios = comparison.ratios(figure)
    spread = f"{_number(min(figure.values))} to {_number(max(figure.values))}" if len(figure.values) > 1 else ""
    ratio = factor_text(statistics.median(ratios)) if ratios else ""
    return figure.name, _number(figure.median), spread, str(len(figure.values)), ratio


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.3g}"
