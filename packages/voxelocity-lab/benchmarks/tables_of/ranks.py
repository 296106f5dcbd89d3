"""The tables of several ranks."""

from __future__ import annotations

import statistics
from typing import Any

from tables_of.results import columns, of_records, source_line


@of_records("ranks.json")
def rank_lines(record: dict[str, Any]) -> list[str]:
    """What was measured of several ranks, one table after another."""
    found = record["found"]
    tables = {"losses": _losses, "dice": _dice, "overhead": _overhead, "unequal": _unequal}
    lines = [line for name, table in tables.items() if name in found for line in (*table(found[name]), "")]
    return [*lines, source_line(record, found)]


def _losses(found: dict[str, Any]) -> list[str]:
    alone = found["1"]["patches_per_s"]
    return columns(
        found.items(),
        ("ranks of one thread", lambda row: row[0]),
        ("largest difference of a loss from one process", lambda row: f"{row[1]['largest_difference']:.1e}"),
        ("patches a second", lambda row: f"{row[1]['patches_per_s']:.1f}"),
        ("times one rank", lambda row: f"{row[1]['patches_per_s'] / alone:.2f}"),
    )


def _dice(found: dict[str, Any]) -> list[str]:
    return columns(
        found.items(),
        ("ranks of one thread", lambda row: row[0]),
        ("Dice after 5 minutes", lambda row: f"{row[1]['mean_dice']:.3f}"),
        ("steps", lambda row: f"{row[1]['step']:,}"),
        ("patches a second", lambda row: f"{row[1]['images_per_s']:.1f}"),
    )


def _overhead(found: dict[str, Any]) -> list[str]:
    low, middle, high = found["ratio_quartiles"]
    return columns(
        [found],
        ("a step in a world of one, ms", lambda row: f"{1000 * row['ours_s']:.1f}"),
        ("in a loop of PyTorch alone, ms", lambda row: f"{1000 * row['plain_s']:.1f}"),
        ("ratio, median (middle half)", lambda row: f"{middle:.3f} ({low:.3f} to {high:.3f})"),
        ("n", lambda row: f"{row['n']:,}"),
    )


def _unequal(found: dict[str, Any]) -> list[str]:
    def step_ms(name: str) -> str:
        middle, low, high = (1000 * of(found[name]) for of in (statistics.median, min, max))
        return f"{middle:.0f} ({low:.0f} to {high:.0f})"

    return columns(
        ("equal", "balanced"),
        ("a rank that is half as fast", lambda name: f"{name} shares"),
        ("a step, ms", step_ms),
        (
            "sums of the weights after a step, relative to one process",
            lambda name: f"{found[f'{name}_difference']:.1e}",
        ),
    )
