"""Sums up a record: one sentence, key figures, tables of phases and devices, the last lines on a terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from voxelocity_observe.core.command import signal_name
from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    count_text,
    duration_text,
    joined,
    rate_text,
    share_text,
)
from voxelocity_observe.core.terminal_text import printable
from voxelocity_observe.document.blocks import Card, Table, record_table
from voxelocity_observe.monitor.columns import Column, Columns, GpuColumns, Phase, mean_of_known, peak, spread_of
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.timelines import memory_share

_TITLE_LENGTH = 64


def sentence(columns: Columns) -> str:
    """What the record shows, in one sentence that claims no more than was seen."""
    record = columns.record
    parts = [_busy_text(columns), _gpu_text(columns), _memory_text(columns), ended_text(record)]
    seen = joined(parts, "; ")
    if not record.samples:
        watched = f"No sample was taken in {duration_text(record.seconds)}"
        return f"{watched}; {seen}." if seen else f"{watched}."
    return f"In {duration_text(record.seconds)}, {seen or 'this machine gave no data'}."


def title_of(record: MonitorRecord) -> str:
    """The command without its folders, printable and cut to fit a heading; "Monitor" if there was none."""
    words = (Path(word).name if word.startswith("/") else word for word in record.command)
    whole = printable(shlex.join(words)) or "Monitor"
    if len(whole) <= _TITLE_LENGTH:
        return whole
    cut = whole[: _TITLE_LENGTH + 1].rpartition(" ")[0]
    return f"{cut if len(cut) > _TITLE_LENGTH // 2 else whole[:_TITLE_LENGTH].rstrip()} ..."


def ended_text(record: MonitorRecord) -> str:
    """How the command ended; empty if there was none."""
    if not record.command:
        return ""
    if record.status is None:
        return "the command has not ended yet"
    if record.status < 0:
        return f"the command was ended by {signal_name(-record.status)}"
    return f"the command ended with status {record.status}"


def cards(columns: Columns) -> list[Card]:
    """Key figures; unknown ones are left out."""
    record = columns.record
    host = columns.host
    program_cores, memory = columns.mean(host("program_cores")), peak(host("memory_used_bytes"))
    samples = f"{count_text(len(record.samples), 'sample')}, one every {duration_text(record.period_s)}"
    shown = [
        Card(name="Watched", value=duration_text(record.seconds), note=samples if record.samples else "no sample"),
        _card(
            "CPU busy", columns.mean(columns.cores[0]), share_text, f"mean of {count_text(columns.num_cores, 'core')}"
        ),
        _card("The program", program_cores, _in_cores, f"mean; at most {_in_cores(peak(host('program_cores')))}"),
        _card("Memory", memory, bytes_text, _memory_note(columns)),
        _card("Memory of the program", peak(host("program_memory_bytes")), bytes_text, "at most"),
    ]
    busy = [columns.mean(device.column("busy_share")) for device in columns.devices]
    used = [peak(device.column("memory_used_bytes")) for device in columns.devices]
    many = len(columns.devices) > 1
    note = f"mean over time of {len(busy)} devices" if many else "of the time a kernel ran"
    shown.append(_card("GPU busy", mean_of_known(busy), share_text, note))
    shown.append(_card("GPU memory", peak(np.array(used)), bytes_text, _gpu_memory_note(columns)))
    energy_wh = gpu_energy_wh(columns)
    shown.append(
        _card("Energy of the GPU" + "s" * many, energy_wh, lambda value: _number_text(value, " Wh"), "power over time")
    )
    return [card for card in shown if card.value != NOT_AVAILABLE]


def phase_table(columns: Columns, phases: Sequence[Phase]) -> Table:
    """Time of each phase, and means of what the machine did, each sample weighted by how much of it the phase fills."""
    gpu = [device.column("busy_share") for device in columns.devices]
    measured: list[tuple[str, Column, str]] = [
        ("CPU busy", columns.cores[0], "share"),
        ("Program, cores", columns.host("program_cores"), "rate"),
        ("Disk read", columns.host("disk_read_bytes_per_s"), "bytes"),
        ("GPU busy", spread_of(gpu)[0] if gpu else np.full_like(columns.times_s, np.nan), "share"),
    ]
    measured = [entry for entry in measured if np.isfinite(entry[1]).any()]
    stops_s = columns.times_s
    starts_s = stops_s - columns.periods_s
    rows = []
    for phase in phases:
        weights_s = phase.within(starts_s, stops_s)
        means = (_TEXTS[kind](columns.mean(column, weights_s)) for _, column, kind in measured)
        share = phase.seconds / columns.until_s if columns.until_s > 0.0 else math.nan
        rows.append((phase.name, duration_text(phase.seconds), share_text(share), f"{phase.count:,}", *means))
    heads = ("Phase", "Time", "Of all", "Times", *(head for head, _, _ in measured))
    return Table(caption="Phases", heads=heads, rows=rows)


def device_table(columns: Columns) -> Table:
    """One row per GPU or slice: what it is, its means and its peaks."""

    def memory(device: GpuColumns) -> str:
        used, total = peak(device.column("memory_used_bytes")), peak(device.column("memory_total_bytes"))
        return f"{bytes_text(used)} of {bytes_text(total)}" if math.isfinite(used) else NOT_AVAILABLE

    def reasons(device: GpuColumns) -> str:
        found = {reason for sample in device.samples if sample is not None for reason in sample.throttle_reasons}
        return joined(sorted(found)).replace("_", " ") or "none seen"

    cells: dict[str, Callable[[GpuColumns], str]] = {
        "GPU": lambda device: device.name,
        "Name": lambda device: next(s.name for s in reversed(device.samples) if s is not None) or NOT_AVAILABLE,
        "Busy": lambda device: share_text(columns.mean(device.column("busy_share"))),
        "Memory at most": memory,
        "Power": lambda device: _number_text(columns.mean(device.column("power_w")), " W"),
        "Temperature at most": lambda device: _number_text(peak(device.column("temperature_c")), " °C"),
        "Clocks lowered by": reasons,
    }
    return record_table("GPUs", columns.devices, cells, words=("Name", "Clocks lowered by"))


def rank_table(columns: Columns) -> Table:
    """One row per rank: its mean and its peak."""
    rows = [
        (name, rate_text(columns.mean(cores)), rate_text(peak(cores)), bytes_text(peak(size)))
        for name, cores, size in columns.ranks
    ]
    return Table(caption="Ranks", heads=("Rank", "Cores", "Cores at most", "Memory at most"), rows=rows)


def _busy_text(columns: Columns) -> str:
    busy, program = columns.mean(columns.cores[0]), columns.mean(columns.host("program_cores"))
    cores = count_text(columns.num_cores, "core")
    if math.isnan(busy):
        return "" if math.isnan(program) else f"the program kept {_in_cores(program)} busy"
    used = "" if math.isnan(program) else f" ({rate_text(program)} of them by the program)"
    return f"{rate_text(busy * columns.num_cores)} of {cores} {'were' if columns.num_cores > 1 else 'was'} busy{used}"


def _gpu_text(columns: Columns) -> str:
    means = [columns.mean(device.column("busy_share")) for device in columns.devices]
    known = [mean for mean in means if math.isfinite(mean)]
    if not known:
        return ""
    if len(means) == 1:
        return f"the GPU was busy {share_text(known[0])} of the time"
    low, high = share_text(min(known)), share_text(max(known))
    spread = low if low == high else f"{low} to {high}"
    return f"{count_text(len(known), 'GPU')} were busy {spread} of the time"


def _memory_text(columns: Columns) -> str:
    used, limit = peak(columns.host("memory_used_bytes")), columns.memory_limit_bytes
    swap = peak(columns.host("swap_used_bytes"))
    if math.isnan(used):
        return ""
    whole = f" of {bytes_text(limit)} ({share_text(used / limit)})" if limit > 0.0 else ""
    return f"memory reached {bytes_text(used)}{whole}" + (f", swap {bytes_text(swap)}" if swap > 0.0 else "")


def _memory_note(columns: Columns) -> str:
    limit = columns.memory_limit_bytes
    return f"at most, of {bytes_text(limit)}" if math.isfinite(limit) else "at most"


def _gpu_memory_note(columns: Columns) -> str:
    shares = [peak(memory_share(device)) for device in columns.devices]
    return f"at most, {share_text(peak(np.array(shares)))} of the device's own"


def gpu_energy_wh(columns: Columns) -> float:
    """Power over time, of all devices; a slice has no power figure of its own."""
    powers = [device.column("power_w") for device in columns.devices]
    joules = [float(np.nansum(power * columns.periods_s)) for power in powers if np.isfinite(power).any()]
    return sum(joules) / 3600.0 if joules else math.nan


def _in_cores(cores: float) -> str:
    return _number_text(cores, " core" if cores == 1.0 else " cores")


def _number_text(value: float, unit: str) -> str:
    return NOT_AVAILABLE if math.isnan(value) else rate_text(value) + unit


def _card(name: str, value: float, text: Callable[[float], str], note: str) -> Card:
    return Card(name=name, value=text(value), note=note)


_TEXTS: dict[str, Callable[[float], str]] = {
    "share": share_text,
    "rate": rate_text,
    "bytes": lambda value: NOT_AVAILABLE if math.isnan(value) else f"{bytes_text(value)}/s",
}


def summary_lines(record: MonitorRecord, place: Path, *, reported: Collection[str] = ()) -> list[str]:
    """How it ended and how long it took, CPU, memory, each rank and GPU, what is missing, where to look.

    Args:
        record: of a command, complete.
        place: the page or the folder of the record.
        reported: the missing things that were reported already.
    """
    columns = Columns(record)
    lines = [f"{ended_text(record)} after {duration_text(record.seconds)}"]
    if record.samples:
        ranks = [
            f"{name}: {columns.mean(cores):.2f} cores on average, memory: {bytes_text(peak(size))} at most"
            for name, cores, size in columns.ranks
        ]
        lines += [_host(columns), *ranks, *(_gpu(columns, device) for device in columns.devices)]
    else:
        lines.append("it was too short for a sample")
    lines += [f"not measured: {line}" for line in record.missing if line not in reported]
    lines.append(f"see {place}")
    return lines


def _host(columns: Columns) -> str:
    program, others = (columns.mean(columns.host(name)) for name in ("program_cores", "others_cores"))
    memory = peak(columns.host("program_memory_bytes"))
    parts = [] if math.isnan(program) else [f"CPU: {program:.2f} of {columns.num_cores} cores on average"]
    parts += [] if math.isnan(others) else [f"others took {others:.2f}"]
    parts += [] if math.isnan(memory) else [f"memory: {bytes_text(memory)} at most"]
    return ", ".join(parts) or "CPU: no data"


def _gpu(columns: Columns, device: GpuColumns) -> str:
    busy = columns.mean(device.column("busy_share"))
    used, total = (peak(device.column(name)) for name in ("memory_used_bytes", "memory_total_bytes"))
    parts = [] if math.isnan(busy) else [f"busy {share_text(busy)} of the time"]
    parts += [] if math.isnan(used) else [f"memory {bytes_text(used)} of {bytes_text(total)} at most"]
    return f"{device.name}: {', '.join(parts) or 'no data'}"
