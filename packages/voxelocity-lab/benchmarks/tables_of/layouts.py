"""The tables of public data sets whose folders are recognized, and of lists that are opened as they are."""

from __future__ import annotations

from typing import Any

from tables_of.results import markdown_table, of_records, source_line
from voxelocity_observe.core.quantities import bytes_text


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


@of_records("layouts.json")
def list_lines(record: dict[str, Any]) -> list[str]:
    """What is read of each list, and the cost of a folder of many masks."""
    rows = [
        (
            name,
            "yes" if found["is_right"] else "no",
            *(found[key] for key in ("cases", "channels", "classes", "held_out")),
        )
        for name, found in record["lists"].items()
    ]
    large = record["large"]
    cost = ", ".join(
        f"`{command}` {large[command]['wall_s']:.1f} s and {bytes_text(large[command]['peak_bytes'])}"
        for command in ("init", "plan")
    )
    return [
        *markdown_table(("list", "opened", "cases", "channels", "classes", "held out in fold 0"), rows),
        "",
        f"{large['num_cases']:,} cases of {large['num_masks']} masks each, links to one scan and its classes: {cost}.",
        "",
        source_line(record),
    ]
