"""The parts of a training step: one table of labels, and the record of a part's share of a time."""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"
EXCHANGE = "exchange"
GRAPH = "graph"
"""All of a step but waiting, replayed as one CUDA graph, whose inside no event divides."""
_LABELS = {
    "wait": "waiting for data",
    "copy": "copy to the device",
    EXCHANGE: "waiting for other ranks",
    GRAPH: "the step as one CUDA graph",
}


@dataclass(frozen=True, kw_only=True)
class TimeShare:
    """One part of a time: its label, its seconds, and its share of the whole."""

    name: str
    seconds: float
    share: float


def part_label(part: str) -> str:
    """The label of a part in reports: "wait" is "waiting for data"; "forward", "backward" and others are their own."""
    return _LABELS.get(part, part)
