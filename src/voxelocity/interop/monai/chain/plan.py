"""What a compiled chain does with each transform, as a readable table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One line of the plan.

    Attributes:
        stage: name of the transform.
        part: what happens to its result: "cached", or "drawn again" each time.
        how: "engine" if this package runs it, "MONAI" if it runs unchanged.
        reason: why it runs unchanged; "" if it does not.
        ms: mean time of a call so far, None before the first.
    """

    stage: str
    part: str
    how: str
    reason: str
    ms: float | None


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """The plan of a chain. Printing it gives the table.

    Attributes:
        rows: in the order of the chain.
        notes: what else the user should know, one sentence each.
    """

    rows: Sequence[PlanRow]
    notes: Sequence[str]

    def __str__(self) -> str:
        header = ("stage", "result", "runs by", "ms a call", "why it runs unchanged")
        lines = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        rule = tuple("-" * width for width in widths)
        text = ["  ".join(_set(line, widths)).rstrip() for line in (header, rule, *lines[1:])]
        return "\n".join([*text, *self.notes])


def _cells(row: PlanRow) -> tuple[str, str, str, str, str]:
    return (row.stage, row.part, row.how, "-" if row.ms is None else f"{row.ms:.2f}", row.reason)


def _set(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
    cells[3] = line[3].rjust(widths[3])
    return cells
