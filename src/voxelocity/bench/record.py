"""What a benchmark came to, as plain data for a file and as tables for a terminal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voxelocity.bench.paired import Comparison, Figure
from voxelocity.core.quantities import factor_text
from voxelocity.core.whole_file import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LARGE = 1000.0


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

    def write(self, folder: Path) -> Path:
        """Writes `bench_<name>.json` into the folder and returns its path.

        Raises:
            OutputError: it cannot be written.
        """
        content = json.dumps(self.to_plain(), indent=1, allow_nan=False) + "\n"
        return write_whole(folder / f"bench_{self.name}.json", content.encode())


def comparison_table(comparison: Comparison) -> RenderableType:
    """One comparison for a terminal: a line for each side, ours first, its settings below the table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for head in (comparison.unit, "least to most", "n", "ours better by"):
        table.add_column(head, justify="right")
    for figure in comparison.figures:
        table.add_row(*(Text(cell) for cell in _cells(comparison, figure)))
    return Group(Text(comparison.title, style="bold"), table, *_notes(comparison))


def _cells(comparison: Comparison, figure: Figure) -> tuple[str, ...]:
    if figure.median is None:
        return figure.name, "n/a", "", "", ""
    ratios = comparison.ratios(figure)
    spread = f"{_number(min(figure.values))} to {_number(max(figure.values))}" if len(figure.values) > 1 else ""
    ratio = factor_text(statistics.median(ratios)) if ratios else ""
    return figure.name, _number(figure.median), spread, str(len(figure.values)), ratio


def _notes(comparison: Comparison) -> Iterator[Text]:
    if comparison.note:
        yield Text(comparison.note, style="dim")
    for figure in comparison.figures:
        if figure.note:
            yield Text(f"{figure.name}: {figure.note}", style="dim")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.3g}"
