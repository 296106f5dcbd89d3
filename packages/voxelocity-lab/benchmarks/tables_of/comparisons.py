"""Tables of `voxelocity bench`: all comparisons of a record, in short and with their notes."""

from __future__ import annotations

from typing import Any

from tables_of.results import markdown_table, source_line
from voxelocity_observe.core.quantities import factor_text, figure_text


def in_short(record: dict[str, Any]) -> list[str]:
    """All comparisons of a record without their notes."""
    source = f"{source_line(record)} Factors are medians of the ratios within each round."
    return [*short_tables(record["comparisons"]), f"{source} Settings and notes: [measured.md](measured.md).", ""]


def short_tables(comparisons: list[dict[str, Any]]) -> list[str]:
    """A table for each comparison, without notes."""
    lines = []
    for comparison in comparisons:
        lines += [f"**{comparison['title']}**", ""]
        lines += markdown_table(
            ("", comparison["unit"], "least to most", "n", "ours better by"),
            (
                (
                    side["name"],
                    figure_text(side.get("median")),
                    f"{figure_text(side.get('low'))} to {figure_text(side.get('high'))}" if side["n"] > 1 else "",
                    side["n"],
                    factor_text((side.get("ours_better_by") or {}).get("median")) if side["n"] else side["note"],
                )
                for side in comparison["sides"]
            ),
        )
        lines += [""]
    return lines


def side_by_side(record: dict[str, Any]) -> list[str]:
    """All comparisons of one `voxelocity bench` scenario."""
    lines = [f"## Side by side: {record['benchmark']}", "", f"`{record['command']}`, {record['date']}", ""]
    # A setting off and on has no side of ours: both are.
    better = "the first better by" if "comparison" in record else "ours better by"
    for comparison in record["comparisons"]:
        lines += [f"**{comparison['title']}**", ""]
        lines += markdown_table(
            ("", comparison["unit"], "least", "most", "n", better, ""),
            (
                (
                    side["name"],
                    *(figure_text(side.get(key)) for key in ("median", "low", "high")),
                    side["n"],
                    factor_text((side.get("ours_better_by") or {}).get("median")),
                    side["note"],
                )
                for side in comparison["sides"]
            ),
        )
        lines += ["", *([comparison["note"] + ".", ""] if comparison["note"] else [])]
    return lines
