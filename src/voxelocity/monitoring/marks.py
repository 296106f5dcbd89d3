"""Phases that the watched program marked: read from its span files and placed on the time axis of the samples."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voxelocity.observe.samples import PhaseMark

MAX_PHASES = 10_000


def read_phases(folder: Path, begin_s: float) -> tuple[list[PhaseMark], str]:
    """The phases by their beginning, at most the `MAX_PHASES` longest; and a note if some were left out.

    Torn or strange lines are skipped: a program may be killed while it writes one.

    Args:
        folder: with the span files; a folder without any is not an error.
        begin_s: the machine's clock (`time.perf_counter`) when sampling began.
    """
    num_seen = 0
    longest: list[tuple[float, int, PhaseMark]] = []
    for number, span in enumerate(_spans(folder)):
        mark = _mark(span, begin_s)
        if mark is None:
            continue
        num_seen += 1
        entry = (mark.seconds, -number, mark)
        if len(longest) < MAX_PHASES:
            heapq.heappush(longest, entry)
        else:
            heapq.heappushpop(longest, entry)
    marks = sorted((mark for _, _, mark in longest), key=lambda mark: (mark.start_s, -mark.seconds))
    left_out = num_seen - len(marks)
    return marks, f"phases: the {left_out:,} shortest of {num_seen:,} are left out" if left_out else ""


def _spans(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("spans-*.jsonl")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue
        except OSError:
            continue


def _mark(span: Any, begin_s: float) -> PhaseMark | None:
    try:
        return PhaseMark(
            name=str(span["name"]),
            start_s=float(span["start_s"]) - begin_s,
            seconds=float(span["seconds"]),
            color=str(span.get("color") or ""),
            rank=int(span.get("rank") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
