"""Result files, and the pieces that every table is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voxelocity.report import bytes_text, duration_text

RESULTS = Path(__file__).resolve().parents[1] / "results"


def load(pattern: str) -> list[dict[str, Any]]:
    """Result files by name, each with its own name under "file"."""
    return [json.loads(path.read_text()) | {"file": path.name} for path in sorted(RESULTS.glob(pattern))]


def source_line(record: dict[str, Any], command: str) -> str:
    """Where a record comes from: command, date, commit and machine."""
    environment = record["environment"]
    commit = str(environment.get("commit") or "unknown")[:12]
    date = f"{record['date']}, " if "date" in record else ""
    return (
        f"`{command}`, {date}commit {commit}, {environment['cpu']}, {environment['num_cpus']} cores, "
        f"{bytes_text(environment['memory_bytes'])}, GPU: {environment['gpu'] or 'none'}."
    )


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    titles = list(header)
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *body]


def figure_text(value: float | None) -> str:
    """A number with three digits, or all of them from a thousand on."""
    return "n/a" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def range_text(figure: dict[str, float]) -> str:
    """Median, least and most."""
    return f"{figure_text(figure['median'])} ({figure_text(figure['low'])} to {figure_text(figure['high'])})"


def percents(figure: dict[str, float]) -> str:
    """Median, least and most of shares."""
    return f"{figure['median']:.2%} ({figure['low']:.2%} to {figure['high']:.2%})"


def spread_text(found: dict[str, float] | None) -> str:
    """Median and quartiles in ms."""
    if found is None:
        return "n/a"
    return f"{found['median_ms']:.2f} ms ({found['low_ms']:.2f} to {found['high_ms']:.2f})"


def demo_words(demo: dict[str, Any]) -> str:
    """How much sooner the demo reached its target."""
    plain, fast = demo["runs"]
    times = plain["seconds_to_target"], fast["seconds_to_target"]
    target = demo["target_dice"]
    if None in times:
        return f"a side did not reach Dice {target:g}"
    return (
        f"{times[0] / times[1]:.1f} times sooner at Dice {target:g} "
        f"({duration_text(times[0])} plainly, {duration_text(times[1])} with Voxelocity)"
    )
