"""The table of public data sets whose folders are recognized."""

from __future__ import annotations

from typing import Any

from tables_of.results import markdown_table, of_records, source_line


@of_records("layouts.json")
def layout_lines(record: dict[str, Any]) -> list[str]:
    """What `init` and `plan` find in each layout, and the option that it needs."""
    rows = [
        (
            name,
            "yes" if found["is_right"] else "no",
            f"`{found['options']}`" if found["options"] else "",
            found["cases"],
            found["channels"],
            found["classes"],
        )
        for name, found in record["layouts"].items()
    ]
    alone = sum(not found["without_options"] for found in record["layouts"].values())
    heads = ("layout of", "recognized", "with option", "cases", "channels", "classes")
    return [
        *markdown_table(heads, rows),
        "",
        f"Three patients each, names as published, random content; {alone} of {len(rows)} need no option.",
        "",
        source_line(record),
    ]
