"""Tables of the concept pages."""

from __future__ import annotations

from tables_of.comparisons import in_short
from tables_of.results import load, markdown_table, refused

TABLE_OF = {"cache.md": ("cache", "build"), "patches.md": ("patches",), "augmentation.md": ("transforms",),
             "feed.md": ("feed", "training")}  # fmt: skip


def page_tables(name: str) -> str:
    """The tables of one concept page: its scenarios in short, and what else was measured of its subject."""
    lines: list[str] = []
    if name == "feed.md":
        lines += _waiting_lines()
    for scenario in TABLE_OF[name]:
        for record in load(f"bench_{scenario}.json"):
            lines += in_short(record)
    if not lines:
        return "Not measured at a clean commit yet: " + "; ".join(refused() or ["no result file"])
    return "\n".join(lines[:-1])


def _waiting_lines() -> list[str]:
    """Which part of whole trainings was spent waiting."""
    rows = [
        (f"{r['scenario']}, {r['time_budget']}", "Voxelocity", f"{r['wait_share']:.1%}", 1, f"{r['date']}")
        for r in load("main_job_*.json")
    ]
    table = markdown_table(("training", "by", "waiting for data", "n", "date"), rows)
    return ["**Part of the training time spent waiting for data**", "", *table, "",
            "Commands and machines: [measured.md](measured.md).", ""]  # fmt: skip
