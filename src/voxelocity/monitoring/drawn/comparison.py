"""Two records side by side: what the machine did before and after a change. Judges nothing: it says what was seen.

A record has no steps and no accuracy, so it cannot say that a program became better; compare runs or diagnoses for
that. It shows whether the machine was used more, and the cost in memory.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    share_text,
    value_text,
)
from voxelocity.monitoring.drawn.columns import Column, Columns, mean_of_known, peak
from voxelocity.monitoring.drawn.phases import Phase, phases_of
from voxelocity.monitoring.drawn.summary import ended_text, gpu_energy_wh, title_of
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.report.differences import different_machines
from voxelocity.report.labeled import LabeledRun, differing_settings

# Means of fewer samples than this say little.
_FEW_SAMPLES = 10


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One quantity of both records; NaN where it is unknown.

    Attributes:
        key: with its unit, as in JSON.
        text: formats a value for reading.
    """

    key: str
    name: str
    before: float
    after: float
    text: Callable[[float], str]

    @property
    def row(self) -> tuple[str, str, str]:
        return self.name, self.text(self.before), self.text(self.after)


@dataclass(frozen=True, kw_only=True)
class PhaseFigures:
    """A phase that either record marked; its figures in both, NaN where it was not seen."""

    name: str
    figures: Sequence[Figure]


@dataclass(frozen=True, kw_only=True)
class MonitorComparison:
    """Before and after.

    Attributes:
        figures: of the whole time; those unknown in both are left out.
        phases: by name, in the order in which they first began.
        settings: dotted key to (before, after), of command, period and machine where they differ; `num_equal` do not.
        notices: what a reader must know before believing the figures.
    """

    titles: tuple[str, str]
    figures: Sequence[Figure]
    phases: Sequence[PhaseFigures]
    settings: dict[str, tuple[Any, ...]]
    num_equal: int
    notices: Sequence[str]


def compare_records(a: MonitorRecord, b: MonitorRecord) -> MonitorComparison:
    """What the machine did while `a`, before, and while `b`, after."""
    sides = Columns(a), Columns(b)
    values = [_measured(columns) for columns in sides]
    figures = [_figure(key, values[0][key], values[1][key]) for key in _OF_ALL]
    settings, num_equal = differing_settings([_settings(record) for record in (a, b)])
    return MonitorComparison(
        titles=(title_of(a), title_of(b)),
        figures=[figure for figure in figures if not math.isnan(figure.before) or not math.isnan(figure.after)],
        phases=_phases(sides),
        settings=settings,
        num_equal=num_equal,
        notices=_notices(a, b),
    )


def comparison_sentence(found: MonitorComparison) -> str:
    """The length of both, and how busy cores and GPUs were, in one sentence."""
    by_key = {figure.key: figure for figure in found.figures}
    parts = []
    for key, words in (
        ("seconds", "It took {}"),
        ("cpu_busy_share", "cores were busy {}"),
        ("gpu_busy_share", "GPUs {}"),
    ):
        figure = by_key.get(key)
        if figure is not None:
            parts.append(words.format(f"{figure.text(figure.after)} instead of {figure.text(figure.before)}"))
    return "; ".join(parts) + "."


def _measured(columns: Columns) -> dict[str, float]:
    host, devices = columns.host, columns.devices
    busy = [columns.mean(device.column("busy_share")) for device in devices]
    used = [peak(device.column("memory_used_bytes")) for device in devices]
    return {
        "seconds": columns.record.seconds,
        "cpu_busy_share": columns.mean(columns.cores[0]),
        "program_cores": columns.mean(host("program_cores")),
        "others_cores": columns.mean(host("others_cores")),
        "memory_peak_bytes": peak(host("memory_used_bytes")),
        "program_memory_peak_bytes": peak(host("program_memory_bytes")),
        "disk_read_bytes": _sum(host("disk_read_bytes_per_s") * columns.periods_s),
        "disk_write_bytes": _sum(host("disk_write_bytes_per_s") * columns.periods_s),
        "gpu_busy_share": mean_of_known(busy),
        "gpu_memory_peak_bytes": peak(np.array(used)),
        "gpu_energy_wh": gpu_energy_wh(columns),
    }


_Text = Callable[[float], str]
_OF_ALL: Mapping[str, tuple[str, _Text]] = {
    "seconds": ("Watched", duration_text),
    "cpu_busy_share": ("Cores busy", share_text),
    "program_cores": ("Program, cores", rate_text),
    "others_cores": ("Others, cores", rate_text),
    "memory_peak_bytes": ("Memory, peak", bytes_text),
    "program_memory_peak_bytes": ("Program memory, peak", bytes_text),
    "disk_read_bytes": ("Read from disk", bytes_text),
    "disk_write_bytes": ("Written to disk", bytes_text),
    "gpu_busy_share": ("GPUs busy", share_text),
    "gpu_memory_peak_bytes": ("GPU memory, peak", bytes_text),
    "gpu_energy_wh": ("GPU energy", lambda value: f"{rate_text(value)} Wh" if math.isfinite(value) else NOT_AVAILABLE),
}


def _figure(key: str, before: float, after: float, *, of_phase: bool = False) -> Figure:
    name, text = ("Time", duration_text) if of_phase and key == "seconds" else _OF_ALL[key]
    return Figure(key=key, name=name, before=before, after=after, text=text)


def _phases(sides: tuple[Columns, Columns]) -> list[PhaseFigures]:
    found = [{phase.name: phase for phase in phases_of(columns.record.phases)} for columns in sides]
    names = dict.fromkeys(name for phases in found for name in phases)
    result = []
    for name in names:
        measured = [_of_phase(columns, phases.get(name)) for columns, phases in zip(sides, found, strict=True)]
        figures = [_figure(key, measured[0][key], measured[1][key], of_phase=True) for key in measured[0]]
        known = [one for one in figures if not math.isnan(one.before) or not math.isnan(one.after)]
        result.append(PhaseFigures(name=name, figures=known))
    return result


def _of_phase(columns: Columns, phase: Phase | None) -> dict[str, float]:
    """Its time, and means over the samples, weighted by how much of each it fills."""
    keys = ("seconds", "cpu_busy_share", "program_cores", "gpu_busy_share")
    if phase is None:
        return dict.fromkeys(keys, math.nan)
    weights_s = phase.within(columns.times_s - columns.periods_s, columns.times_s)
    busy = [columns.mean(device.column("busy_share"), weights_s) for device in columns.devices]
    means = [columns.mean(column, weights_s) for column in (columns.cores[0], columns.host("program_cores"))]
    return dict(zip(keys, (phase.seconds, *means, mean_of_known(busy)), strict=True))


def setting_text(value: Any, key: str) -> str:
    """The value of a setting in one line, a command as a shell takes it."""
    return shlex.join(value) if key == "command" and isinstance(value, list) else value_text(value, key)


def _settings(record: MonitorRecord) -> LabeledRun:
    return LabeledRun(
        label="",
        settings={
            "command": list(record.command),
            "period_s": record.period_s,
            "machine": dict(record.environment),
        },
    )


def _notices(a: MonitorRecord, b: MonitorRecord) -> list[str]:
    notices = []
    for word, record in (("before", a), ("after", b)):
        if record.command and record.status != 0:
            notices.append(f"{word.capitalize()}, {ended_text(record)}.")
        if len(record.samples) < _FEW_SAMPLES:
            notices.append(
                f"{word.capitalize()} has only {count_text(len(record.samples), 'sample')}; its means are rough."
            )
    if machines := different_machines([record.environment for record in (a, b)]):
        notices.append(f"The two were made on different machines ({machines}).")
    return notices


def plain_figures(figures: Sequence[Figure]) -> dict[str, dict[str, float | None]]:
    """Each key with the value before and after; unknown numbers are None."""
    sides = {figure.key: {"before": figure.before, "after": figure.after} for figure in figures}
    plain: dict[str, dict[str, float | None]] = plain_data(sides, where="comparison")
    return plain


def _sum(column: Column) -> float:
    return float(np.nansum(column)) if np.isfinite(column).any() else math.nan
