"""Samples as columns of numbers, the source of means, peaks and charts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voxelocity.monitoring.record import MonitorRecord
from voxelocity.observe.samples import GpuSample

Column = NDArray[np.float64]

MAX_POINTS = 240


@dataclass(frozen=True)
class Device:
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
        known = np.isfinite(shares)
        counts = known.sum(axis=1)
        mean = _divided(np.where(known, shares, 0.0).sum(axis=1), counts)
        low = np.where(known, shares, np.inf).min(axis=1, initial=np.inf)
        high = np.where(known, shares, -np.inf).max(axis=1, initial=-np.inf)
        return mean, np.where(counts > 0, low, np.nan), np.where(counts > 0, high, np.nan)

    @property
    def num_cores(self) -> int:
        return max((len(sample.host.core_shares) for sample in self.record.samples), default=0)

    @cached_property
    def devices(self) -> Sequence[Device]:
        """Every GPU and slice in any sample, in the order of their numbers."""
        by_sample = [{(gpu.index, gpu.slice): gpu for gpu in sample.gpus} for sample in self.record.samples]
        keys = {key for gpus in by_sample for key in gpus}
        ordered = sorted(keys, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        return [
            Device(f"GPU {index}" + ("" if part is None else f".{part}"), [g.get((index, part)) for g in by_sample])
            for index, part in ordered
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
    return np.fromiter((_number(value) for value in values), dtype=np.float64)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
