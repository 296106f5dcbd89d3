"""Two records side by side as a document: what the machine did before and after a change. Judges nothing.

A record has no steps and no accuracy, so it cannot say that a program became better; compare runs or diagnoses for
that. It shows whether the machine was used more, and the cost in memory.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    share_text,
    value_text,
)
from voxelocity_observe.document.blocks import Card, Document, Section, Table, Text
from voxelocity_observe.document.settings import different_machines, settings_before_and_after
from voxelocity_observe.monitor.columns import Column, Columns, Phase, mean_of_known, peak, phases_of
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.summary import ended_text, gpu_energy_wh, title_of

Figures = Mapping[str, tuple[float, float]]
"""Before and after, by key of `_QUANTITIES`; NaN where one of them is unknown."""

# Means of fewer samples than this say little.
_FEW_SAMPLES = 10
_QUANTITIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
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
_CARDS = ("seconds", "cpu_busy_share", "program_memory_peak_bytes", "gpu_busy_share", "gpu_memory_peak_bytes")
_SENTENCE = {"seconds": "It took", "cpu_busy_share": "cores were busy", "gpu_busy_share": "GPUs were busy"}


def monitor_comparison_document(a: MonitorRecord, b: MonitorRecord) -> Document:
    """What the machine did while `a`, before, and `b`, after, were recorded."""
    sides = Columns(a), Columns(b)
    figures, phases = _both([_measured(columns) for columns in sides]), _phases(sides)
    settings, differing = settings_before_and_after(_settings(a), _settings(b), text_of=_setting_text)
    titles = title_of(a), title_of(b)
    return Document(
        kind="monitor comparison",
        title=titles[1] if titles[0] == titles[1] else " → ".join(titles),
        verdict=_sentence(figures),
        notices=_notices(a, b),
        cards=[
            Card(name=_QUANTITIES[key][0], value=_text(key, after), note=f"{_text(key, before)} before")
            for key, (before, after) in figures.items()
            if key in _CARDS
        ],
        sections=[
            Section(
                title="The whole time",
                blocks=[
                    _table("Of the whole time", figures).without_caption(),
                    Text(
                        text="Cores and GPUs busy are means over time, memory is the highest of any sample. A record "
                        "has no steps and no accuracy: compare two runs or two diagnoses to learn whether the training "
                        "became faster.",
                        is_hint=True,
                    ),
                ],
            ),
            Section(title="Phases", blocks=[_table(name, found, seconds="Time") for name, found in phases.items()]),
            settings,
        ],
        footer="Made from the samples in both folders.",
        values={
            "figures": _plain(figures),
            "phases": {name: _plain(found) for name, found in phases.items()},
            "settings": differing,
        },
    )


def _sentence(figures: Figures) -> str:
    """The length of both, and how busy cores and GPUs were, in one sentence."""
    parts = []
    for key, words in _SENTENCE.items():
        if key in figures:
            before, after = (_text(key, value) for value in figures[key])
            change = ", as before" if before == after else f" (before: {before})"
            parts.append(f"{words} {after}{change}")
    return "; ".join(parts) + "."


def _table(caption: str, figures: Figures, *, seconds: str = "Watched") -> Table:
    names = {**{key: name for key, (name, _) in _QUANTITIES.items()}, "seconds": seconds}
    rows = [(names[key], *(_text(key, value) for value in values)) for key, values in figures.items()]
    return Table(caption=caption, heads=("", "Before", "After"), rows=rows)


def _text(key: str, value: float) -> str:
    return _QUANTITIES[key][1](value)


def _plain(figures: Figures) -> dict[str, dict[str, float | None]]:
    sides = {key: {"before": before, "after": after} for key, (before, after) in figures.items()}
    plain: dict[str, dict[str, float | None]] = plain_data(sides, where="comparison")
    return plain


def _both(measured: Sequence[Mapping[str, float]]) -> Figures:
    """The figures of both records; those unknown in both are left out."""
    before, after = measured
    pairs = {key: (before[key], after[key]) for key in before}
    return {key: pair for key, pair in pairs.items() if not all(map(math.isnan, pair))}


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


def _phases(sides: tuple[Columns, Columns]) -> dict[str, Figures]:
    """Each phase that either record marked, in the order in which they first began."""
    found = [{phase.name: phase for phase in phases_of(columns.record.phases)} for columns in sides]
    names = dict.fromkeys(name for phases in found for name in phases)
    return {
        name: _both([_of_phase(columns, phases.get(name)) for columns, phases in zip(sides, found, strict=True)])
        for name in names
    }


def _of_phase(columns: Columns, phase: Phase | None) -> dict[str, float]:
    """Its time, and means over the samples, weighted by how much of each it fills."""
    keys = ("seconds", "cpu_busy_share", "program_cores", "gpu_busy_share")
    if phase is None:
        return dict.fromkeys(keys, math.nan)
    weights_s = phase.within(columns.times_s - columns.periods_s, columns.times_s)
    busy = [columns.mean(device.column("busy_share"), weights_s) for device in columns.devices]
    means = [columns.mean(column, weights_s) for column in (columns.cores[0], columns.host("program_cores"))]
    return dict(zip(keys, (phase.seconds, *means, mean_of_known(busy)), strict=True))


def _settings(record: MonitorRecord) -> dict[str, Any]:
    return {"command": list(record.command), "period_s": record.period_s, "machine": dict(record.environment)}


def _setting_text(value: Any, key: str) -> str:
    """The value of a setting in one line, a command as a shell takes it."""
    return shlex.join(value) if key == "command" and isinstance(value, list) else value_text(value, key)


def _notices(a: MonitorRecord, b: MonitorRecord) -> list[str]:
    """What a reader must know before believing the figures."""
    notices = []
    for word, record in (("Before", a), ("After", b)):
        if record.command and record.status != 0:
            notices.append(f"{word}, {ended_text(record)}.")
        if len(record.samples) < _FEW_SAMPLES:
            notices.append(f"{word}, there are only {count_text(len(record.samples), 'sample')}; the means are rough.")
    if machines := different_machines([record.environment for record in (a, b)]):
        notices.append(f"The two were made on different machines ({machines}).")
    return notices


def _sum(column: Column) -> float:
    return float(np.nansum(column)) if np.isfinite(column).any() else math.nan
