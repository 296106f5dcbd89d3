"""Tables of `voxelocity bench`: all comparisons of a record, in short and with their notes."""

from __future__ import annotations

from typing import Any

from tables_of.results import columns, load, markdown_table, source_line
from voxelocity_observe.core.quantities import bytes_text, factor_text, figure_text

# Of the settings off and on: noise on most machines, and what epochs say better.
_LEFT_OUT = ("More time for", "Steps to")
_BYTES = {"bytes": 1, "MiB": 2**20}


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


def switch_lines() -> list[str]:
    """For each setting that was trained off and on: its figures off and on, and by how much on is better."""
    lines: list[str] = []
    for record in load("bench_*.json"):
        # Other comparisons have sides, and no setting.
        if "on_environ" in record["settings"]:
            lines += _switch_tables(record)
    return lines[:-1]


def _switch_tables(record: dict[str, Any]) -> list[str]:
    shown = [found for found in record["comparisons"] if not found["title"].startswith(_LEFT_OUT)]
    title, (on, off) = shown[0]["title"], (side["name"] for side in shown[0]["sides"])
    shown[0] = {**shown[0], "title": "training"}
    table = columns(
        shown,
        ("", lambda found: _with_unit(found["title"], found["unit"])),
        (off, lambda found: _in_unit(found["sides"][1]["median"], found["unit"])),
        (on, lambda found: _in_unit(found["sides"][0]["median"], found["unit"])),
        ("better by", lambda found: factor_text(found["sides"][1]["ours_better_by"]["median"])),
        ("least to most", lambda found: _span_text(found["sides"][1]["ours_better_by"])),
    )
    source = f"n = {shown[0]['sides'][0]['n']} pairs of trainings{load_words(record)}. {source_line(record)}"
    return [f"**{title}**", "", *table, "", source, ""]


def _span_text(ratios: dict[str, float]) -> str:
    return f"{factor_text(ratios['low'])} to {factor_text(ratios['high'])}"


def _with_unit(title: str, unit: str) -> str:
    """The title, with the unit where neither it nor the figures say it."""
    return title if unit in ("epochs", "mean Dice", *_BYTES) else f"{title}, {unit}"


def _in_unit(figure: float, unit: str) -> str:
    return bytes_text(figure * _BYTES[unit]) if unit in _BYTES else figure_text(figure)


def load_words(record: dict[str, Any]) -> str:
    """How busy the machine was, where a record of `voxelocity bench` says it."""
    load_average = record.get("load_average")
    return "" if load_average is None else f", load average {load_average:.1f}"


def side_by_side(record: dict[str, Any]) -> list[str]:
    """All comparisons of one `voxelocity bench` scenario."""
    about = f"`{record['command']}`, {record['date']}{load_words(record)}"
    lines = [f"## Side by side: {record['benchmark']}", "", about, ""]
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
