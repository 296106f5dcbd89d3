"""Samples as columns of numbers, the source of means, peaks and charts; and the phases on their time axis."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voxelocity_observe.document.timeline import TimeBand
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import GpuSample, PhaseMark

Column = NDArray[np.float64]

MAX_POINTS = 240

_MAX_PHASES = 12
_MAX_EXACT = 120
_NUM_CELLS = 300
# The most distinct colors first, and the color of the first line last.
_COLORS = ("part-3", "part-5", "class-4", "part-2", "part-7", "part-4", "part-6", "part-8", "part-1")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class GpuColumns:
    """One GPU, or one slice of it, in all samples; None for a sample without it."""

    name: str
    samples: Sequence[GpuSample | None]

    def column(self, field: str) -> Column:
        """One field of `GpuSample`, NaN where it is unknown."""
        return _column(None if sample is None else getattr(sample, field) for sample in self.samples)


@dataclass(frozen=True)
class Columns:
    """The samples of a record by field. Unknown values are NaN."""

    record: MonitorRecord

    @cached_property
    def times_s(self) -> Column:
        return _column(sample.time_s for sample in self.record.samples)

    @cached_property
    def periods_s(self) -> Column:
        return _column(sample.period_s for sample in self.record.samples)

    @cached_property
    def until_s(self) -> float:
        """The end of the watched time; samples and phases may reach beyond the recorded length."""
        ends = [sample.time_s for sample in self.record.samples[-1:]]
        return max([self.record.seconds, *ends])

    @cached_property
    def cores(self) -> tuple[Column, Column, Column]:
        """Mean, lowest and highest busy share of all cores, sample by sample."""
        rows = [sample.host.core_shares for sample in self.record.samples]
        shares = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        # Cores may be switched off while a program runs.
        for count, group in itertools.groupby(range(len(rows)), key=lambda i: len(rows[i])):
            indices = list(group)
            shares[indices, :count] = np.array([rows[i] for i in indices], dtype=np.float64)
        return spread_of(shares.T)

    @property
    def num_cores(self) -> int:
        return max((len(sample.host.core_shares) for sample in self.record.samples), default=0)

    @cached_property
    def devices(self) -> Sequence[GpuColumns]:
        """Every GPU and slice in any sample, in the order of their numbers."""
        by_sample = [{(gpu.index, gpu.slice): gpu for gpu in sample.gpus} for sample in self.record.samples]
        keys = {key for gpus in by_sample for key in gpus}
        ordered = sorted(keys, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        return [
            GpuColumns(f"GPU {index}" + ("" if part is None else f".{part}"), [g.get((index, part)) for g in by_sample])
            for index, part in ordered
        ]

    @cached_property
    def ranks(self) -> Sequence[tuple[str, Column, Column]]:
        """Name, cores and bytes of memory of every rank in any sample; NaN while it was not there."""
        by_sample = [{rank.rank: rank for rank in sample.host.ranks} for sample in self.record.samples]
        return [
            (
                f"rank {rank}",
                _column(seen[rank].cores if rank in seen else None for seen in by_sample),
                _column(seen[rank].memory_bytes if rank in seen else None for seen in by_sample),
            )
            for rank in sorted({rank for seen in by_sample for rank in seen})
        ]

    def host(self, field: str) -> Column:
        """One field of `HostSample`, NaN where it is unknown."""
        return _column(getattr(sample.host, field) for sample in self.record.samples)

    @cached_property
    def memory_limit_bytes(self) -> float:
        """Main memory that the program could use; NaN if unknown."""
        stored = self.record.environment.get("memory_bytes")
        if isinstance(stored, int | float):
            return float(stored)
        return peak(self.host("memory_used_bytes") + self.host("memory_available_bytes"))

    def mean(self, column: Column, weights_s: Column | None = None) -> float:
        """The mean over time of the known values; NaN if there are none."""
        weights = self.periods_s if weights_s is None else weights_s
        known = np.isfinite(column) & np.isfinite(weights)
        total = weights[known].sum()
        if total <= 0.0:
            # The very first sample has no period before it.
            return float(column[known].mean()) if weights_s is None and known.any() else np.nan
        return float((column[known] * weights[known]).sum() / total)


def spread_of(columns: Sequence[Column] | NDArray[np.float64]) -> tuple[Column, Column, Column]:
    """Mean, lowest and highest known value of several columns, sample by sample; NaN where none is known."""
    values = np.asarray(columns)
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    mean = _divided(np.where(known, values, 0.0).sum(axis=0), counts)
    low = np.where(known, values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(known, values, -np.inf).max(axis=0, initial=-np.inf)
    return mean, np.where(counts > 0, low, np.nan), np.where(counts > 0, high, np.nan)


def peak(column: Column) -> float:
    """The largest known value; NaN if there is none."""
    known = column[np.isfinite(column)]
    return float(known.max()) if known.size else np.nan


def mean_of_known(values: Sequence[float]) -> float:
    """The mean of the known values; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def thinned(times_s: Column, *columns: Column) -> list[tuple[float, ...]]:
    """(seconds, value of each column) for at most `MAX_POINTS` moments: means of neighbors, NaN where none is known.

    Each moment averages the same number of neighbors, so a long record is as quick to draw as a short one.
    """
    size = len(times_s)
    count = min(size, MAX_POINTS)
    if count == 0:
        return []
    starts = np.arange(count) * size // count
    reduced = []
    for column in (times_s, *columns):
        known = np.isfinite(column)
        sums = np.add.reduceat(np.where(known, column, 0.0), starts)
        reduced.append(_divided(sums, np.add.reduceat(known.astype(np.int64), starts)).tolist())
    return list(zip(*reduced, strict=True))


def _divided(sums: Column, counts: NDArray[np.int64]) -> Column:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _column(values: Iterable[float | None]) -> Column:
    return np.fromiter((np.nan if value is None else value for value in values), dtype=np.float64)


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


def stretches_of(phases: Sequence[Phase], until_s: float) -> list[TimeBand]:
    """The phases as a colored background without overlaps: with few stretches the innermost phase at each time,
    otherwise the one that leads in each cell of time.
    """
    if sum(phase.edges_s.size // 2 for phase in phases) > _MAX_EXACT:
        return _leading(phases, np.linspace(0.0, until_s, _NUM_CELLS + 1))
    edges = np.unique(np.concatenate([[0.0, until_s], *(phase.edges_s for phase in phases)]))
    # A command begins a little before its sampling.
    edges = edges[(edges >= 0.0) & (edges <= until_s)]
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


def _leading(phases: Sequence[Phase], edges: Column) -> list[TimeBand]:
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
        TimeBand(
            name=by_length[leader[start]].name,
            color=by_length[leader[start]].color,
            start_s=float(edges[start]),
            stop_s=float(edges[stop]),
        )
        for start, stop in zip(starts, stops, strict=True)
        if leader[start] >= 0
    ]
