"""The tables of several ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tables_of.results import markdown_table, of_records, source_line


@of_records("ranks.json")
def rank_lines(record: dict[str, Any]) -> list[str]:
    """What was measured of several ranks, one table after another."""
    found = record["found"]
    tables: dict[str, Callable[[Any], list[str]]] = {
        "losses": _losses,
        "dice": _dice,
        "overhead": _overhead,
        "unequal": _unequal,
    }
    lines = [line for name, table in tables.items() if name in found for line in (*table(found[name]), "")]
    return [*lines, f"{_commits(record)}{source_line(record)}"]


def _commits(record: dict[str, Any]) -> str:
    """Which measurements are of another commit than the last one."""
    last = record["environment"]["commit"]
    by_commit: dict[str, list[str]] = {}
    for name, commit in record.get("commits", {}).items():
        if commit != last:
            by_commit.setdefault(commit[:12], []).append(name)
    return "".join(f"{'; '.join(names)}: commit {commit}. " for commit, names in by_commit.items())


def _losses(found: dict[str, Any]) -> list[str]:
    alone = found["1"]["patches_per_s"]
    rows = [
        (
            size,
            f"{figures['largest_difference']:.1e}",
            f"{figures['patches_per_s']:.1f}",
            f"{figures['patches_per_s'] / alone:.2f}",
        )
        for size, figures in found.items()
    ]
    heads = (
        "ranks of one thread",
        "largest difference of a loss from one process",
        "patches a second",
        "times one rank",
    )
    return markdown_table(heads, rows)


def _dice(found: dict[str, Any]) -> list[str]:
    rows = [
        (size, f"{figures['mean_dice']:.3f}", f"{figures['step']:,}", f"{figures['images_per_s']:.1f}")
        for size, figures in found.items()
    ]
    return markdown_table(("ranks of one thread", "Dice after 5 minutes", "steps", "patches a second"), rows)


def _overhead(found: dict[str, Any]) -> list[str]:
    low, middle, high = found["ratio_quartiles"]
    rows = [
        (
            f"{1000 * found['ours_s']:.1f}",
            f"{1000 * found['plain_s']:.1f}",
            f"{middle:.3f} ({low:.3f} to {high:.3f})",
            f"{found['n']:,}",
        )
    ]
    heads = ("a step in a world of one, ms", "in a loop of PyTorch alone, ms", "ratio, median (middle half)", "n")
    return markdown_table(heads, rows)


def _unequal(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{name} shares",
            "{:.0f} ({:.0f} to {:.0f})".format(
                *(1000 * of(found[name]) for of in (statistics.median, min, max)),
            ),
            f"{found[f'{name}_difference']:.1e}",
        )
        for name in ("equal", "balanced")
    ]
    heads = ("a rank that is half as fast", "a step, ms", "sums of the weights after a step, relative to one process")
    return markdown_table(heads, rows)
