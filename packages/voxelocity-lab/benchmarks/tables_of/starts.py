"""The table of trainings that start from a model, next to new weights."""

from __future__ import annotations

from typing import Any

from tables_of.results import markdown_table, of_records, source_line
from voxelocity_observe.core.quantities import factor_text

_NEW = "new weights"
_TASKS = {
    "parts": "hippocampus, from a run on its anterior part",
    "phantoms": "phantoms of three organs, from a run on two of them",
}
_OTHERS = {
    _NEW: "new weights",
    "run": "our run",
    "nnU-Net's results": "nnU-Net's folder",
    "MONAI bundle": "a MONAI bundle",
}


@of_records("start_from.json")
def start_lines(record: dict[str, Any]) -> list[str]:
    """How much sooner the same Dice comes where knowledge carries, and what models of other organs bring."""
    found = record["summaries"]
    sooner = [
        (words, *(_factor(found[task][f"times sooner at {share} of the Dice"]) for share in ("0.95", "0.99", "1")))
        for task, words in _TASKS.items()
    ]
    others = [
        (
            words,
            *(_dice(found["organs"][side][key]) for key in ("after a minute", "after")),
            _same_network(found, side),
        )
        for side, words in _OTHERS.items()
    ]
    counts = {side["n"] for task in found.values() for side in task.values()}
    (num,) = counts if len(counts) == 1 else (f"{min(counts)} to {max(counts)}",)
    return [
        *markdown_table(
            ("training of a minute", "sooner at 95 % of the Dice of new weights", "at 99 %", "at their highest"), sooner
        ),
        "",
        *markdown_table(
            (
                "hippocampus (MRI), from spleens (CT)", "Dice after a minute", "Dice after five",
                "after a minute, its network with new weights",
            ),
            others,
        ),
        "",
        f"Medians with ranges, {num} seeds each, one core for each training.",
        "",
        source_line(record),
    ]  # fmt: skip


def _factor(figure: dict[str, Any]) -> str:
    low, high = figure["interval"]
    return f"{factor_text(figure['median'])} ({factor_text(low)} to {factor_text(high)})"


def _dice(figure: dict[str, Any]) -> str:
    return f"{figure['median']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def _same_network(found: dict[str, Any], side: str) -> str:
    networks = found.get("networks", {})
    name = f"new weights, as {side}"
    return _dice(networks[name]["after a minute"]) if name in networks else ""
