"""Tables of what watching costs, and of how times add up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tables_of.results import load, markdown_table, of_records, percents, range_text, source_line
from voxelocity.core.quantities import factor_text

_WATCHED = {"cpu": "a CPU-bound program", "training": "a training program"}


@of_records("own_cost.json")
def own_cost_lines(record: dict[str, Any]) -> list[str]:
    """What spans and watchers take."""
    rows = [
        ("a span, nobody listens", range_text(record["span_off_us"]), "µs of CPU", record["span_off_us"]["n"]),
        ("a span, recorded with the host's clock", range_text(record["span_on_us"]), "µs of CPU",
         record["span_on_us"]["n"]),
    ]  # fmt: skip
    for row in record["watchers"]:
        what = f"`{row['watcher']}` around {_WATCHED[row['program']]}"
        if row["note"]:
            rows.append((what, "n/a", row["note"], 0))
            continue
        if "told_share" in row:
            rows.append((f"{what}: its own CPU time while it watches, as it tells it", percents(row["told_share"]),
                         "of one core", row["told_share"]["n"]))  # fmt: skip
        rows += [
            (f"{what}: its own CPU time, start-up included", percents(row["own_share"]), "of the program's time",
             row["own_share"]["n"]),
            (f"{what}: what it adds to the program", percents(row["wall_share"]), "of the program's time",
             row["wall_share"]["n"]),
        ]  # fmt: skip
    lines = markdown_table(("what", "median (least to most)", "", "n"), rows)
    return [*lines, "", f"Load average before: {record['load_average']:.1f}. {source_line(record)}"]


def diagnosed_lines(result: str = "diagnose_scripts.json") -> list[str]:
    """Scripts with a planted fault: what the diagnosis named, what it promised, what the change brought."""
    lines: list[str] = []
    for record in load(result):
        rows = []
        for one in record["scripts"]:
            first, achieved = one["first"], one.get("achieved")
            named = "nothing is wrong" if first is None or not one["expected"] else f"{first['code']} {first['title']}"
            rows.append((
                f"{one['stands_for']} (`{one['name']}`)",
                named if one["is_right"] else f"{named} (wrong)",
                "" if one["predicted"] is None else factor_text(one["predicted"]),
                "" if achieved is None else factor_text(achieved["median"]),
                "" if achieved is None else f"{achieved['low']:.2f} to {achieved['high']:.2f}",
                one.get("n", ""),
                str(one["commit"] or "unknown")[:12],
            ))  # fmt: skip
        heads = ("script", "first cause", "promised", "achieved", "least to most", "n", "commit")
        lines += [*markdown_table(heads, rows), "", source_line(record)]
    return lines


def held_out_lines() -> list[str]:
    """The same for programs that no rule was developed on."""
    return diagnosed_lines("diagnose_held_out.json")


@of_records("planted_wait.json")
def planted_lines(record: dict[str, Any]) -> list[str]:
    """What a program waited by its own clock, and what its diagnosis calls waiting."""
    rows = [
        (f"{one['planted']:.0%}", _percent_range(one["waited"]), _percent_range(one["reported"]),
         f"{100.0 * one['largest_difference']:.1f} points", one["n"])
        for one in record["shares"]
    ]  # fmt: skip
    heads = ("planted", "waited, by the program's clock", "reported", "largest difference in one run", "n")
    return [*markdown_table(heads, rows), "", source_line(record)]


@of_records("diagnose_checkpoints.json")
def checkpoint_lines(record: dict[str, Any]) -> list[str]:
    """What scripts saved under a diagnosis, next to what they save without one."""
    rows = [
        (f"{one['stands_for']} (`{one['name']}`)", one["steps"], one["undone_steps"],
         f"{one['num_equal']} of {one['num_checkpoints']}",
         "as before" if one["is_last_untouched"] else "REPLACED", str(one["commit"] or "unknown")[:12])
        for one in record["scripts"]
    ]  # fmt: skip
    heads = (
        "script",
        "own steps",
        "steps of experiments",
        "equal checkpoints",
        "an older `last.pt`",
        "commit",
    )
    return [*markdown_table(heads, rows), "", source_line(record)]


def _percent_range(shares: Sequence[float]) -> str:
    return f"{statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
