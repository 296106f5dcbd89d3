"""Phases of a program over the time axis of the samples: how long, how often, and what the machine did meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxelocity.monitoring.drawn.columns import Column
from voxelocity.observe.samples import PhaseMark
from voxelocity.report.timeline import Stretch

_MAX_PHASES = 12
_MAX_EXACT = 120
_NUM_CELLS = 300
# The most distinct colors first, and the color of the first line last.
_COLORS = ("part-3", "part-5", "class-4", "part-2", "part-7", "part-4", "part-6", "part-8", "part-1")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """All stretches of one name, merged where they overlap.

    Attributes:
        color: a variable of the style sheet, or "#rrggbb".
        count: how often it began.
        edges_s: alternating start and stop of each stretch, increasing.
    """

    name: str
    color: str
    count: int
    edges_s: Column

    @property
    def seconds(self) -> float:
        return float((self.edges_s[1::2] - self.edges_s[::2]).sum())

    def within(self, starts_s: Column, stops_s: Column) -> Column:
        """Seconds of this phase in each of the given stretches of time."""
        lengths = np.zeros_like(self.edges_s)
        lengths[1::2] = self.edges_s[1::2] - self.edges_s[::2]
        covered_s = np.cumsum(lengths)
        result: Column = np.interp(stops_s, self.edges_s, covered_s) - np.interp(starts_s, self.edges_s, covered_s)
        return result


def phases_of(marks: Sequence[PhaseMark]) -> list[Phase]:
    """The phases of the lowest rank, in the order in which they first began.

    Beyond twelve names, the shorter ones are merged.
    """
    rank = min((mark.rank for mark in marks), default=0)
    by_name = dict[str, list[PhaseMark]]()
    for mark in marks:
        if mark.rank == rank and mark.seconds > 0.0:
            by_name.setdefault(mark.name, []).append(mark)
    ordered = sorted(by_name, key=lambda name: by_name[name][0].start_s)
    longest = sorted(ordered, key=lambda name: -sum(mark.seconds for mark in by_name[name]))
    kept = set(longest if len(longest) <= _MAX_PHASES else longest[: _MAX_PHASES - 1])
    phases = [_phase(name, by_name[name], place) for place, name in enumerate(n for n in ordered if n in kept)]
    rest = [name for name in ordered if name not in kept]
    if rest:
        others = [mark for name in rest for mark in by_name[name]]
        phases.append(_phase(f"{len(rest)} others", others, None))
    return phases


def stretches_of(phases: Sequence[Phase], until_s: float) -> list[Stretch]:
    """The phases as a colored background without overlaps: with few stretches the innermost phase at each time,
    otherwise the one that leads in each cell of time.
    """
    if sum(phase.edges_s.size // 2 for phase in phases) > _MAX_EXACT:
        return _leading(phases, np.linspace(0.0, until_s, _NUM_CELLS + 1))
    edges = np.unique(np.concatenate([[0.0, until_s], *(phase.edges_s for phase in phases)]))
    edges = edges[edges <= until_s]
    return _leading(phases, edges) if edges.size > 1 else []


def _phase(name: str, marks: Sequence[PhaseMark], place: int | None) -> Phase:
    given = next((mark.color for mark in marks if _HEX.fullmatch(mark.color)), "")
    color = given or ("part-other" if place is None else _COLORS[place % len(_COLORS)])
    starts = np.array([mark.start_s for mark in marks])
    stops = starts + [mark.seconds for mark in marks]
    return Phase(name=name, color=color, count=len(marks), edges_s=_united(starts, stops))


def _united(starts_s: Column, stops_s: Column) -> Column:
    """Edges of the union of the stretches."""
    order = np.argsort(starts_s, kind="stable")
    starts, reached = starts_s[order], np.maximum.accumulate(stops_s[order])
    begins: NDArray[np.bool_] = np.concatenate([[True], starts[1:] > reached[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([starts[begins], reached[ends]], axis=1).ravel()


def _leading(phases: Sequence[Phase], edges: Column) -> list[Stretch]:
    """One phase, or none, in each cell between the edges; neighboring cells of one phase are merged."""
    by_length = sorted(phases, key=lambda phase: -phase.seconds)
    # Rounded, so that all phases that fill a cell have equal values.
    covered = np.round([phase.within(edges[:-1], edges[1:]) for phase in by_length], 9)
    united = _united(
        np.concatenate([phase.edges_s[::2] for phase in phases]),
        np.concatenate([phase.edges_s[1::2] for phase in phases]),
    )
    anything = Phase(name="", color="", count=0, edges_s=united).within(edges[:-1], edges[1:])
    # Of phases that cover a cell equally, take the innermost: the shortest, which comes last.
    leader = len(by_length) - 1 - np.argmax(covered[::-1], axis=0)
    is_empty = (np.diff(edges) - anything) > np.max(covered, axis=0)
    leader = np.where(is_empty, -1, leader)
    changes = np.flatnonzero(np.diff(leader)) + 1
    starts, stops = np.concatenate([[0], changes]), np.concatenate([changes, [len(leader)]])
    return [
        Stretch(
            name=by_length[leader[start]].name,
            color=by_length[leader[start]].color,
            start_s=float(edges[start]),
            stop_s=float(edges[stop]),
        )
        for start, stop in zip(starts, stops, strict=True)
        if leader[start] >= 0
    ]
