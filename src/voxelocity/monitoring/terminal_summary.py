"""What a monitor prints at the end, in a few lines."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

from voxelocity.core.quantities import bytes_text, duration_text, share_text
from voxelocity.monitoring.drawn.columns import Columns, Device, peak
from voxelocity.monitoring.drawn.summary import ended_text
from voxelocity.monitoring.record import MonitorRecord


def summary_lines(record: MonitorRecord, place: Path, *, told: Collection[str] = ()) -> list[str]:
    """How it ended and how long it took, CPU, memory, each GPU, what is missing, where to look.

    Args:
        record: of a command, complete.
        place: the page or the folder of the record.
        told: the missing things that were reported already.
    """
    columns = Columns(record)
    lines = [f"{ended_text(record)} after {duration_text(record.seconds)}"]
    if record.samples:
        lines += [_host(columns), *(_gpu(columns, device) for device in columns.devices)]
    else:
        lines.append("it was too short for a sample")
    lines += [f"not seen: {line}" for line in record.missing if line not in told]
    lines.append(f"see {place}")
    return lines


def _host(columns: Columns) -> str:
    program, others = (columns.mean(columns.host(name)) for name in ("program_cores", "others_cores"))
    memory = peak(columns.host("program_memory_bytes"))
    parts = [] if math.isnan(program) else [f"CPU: {program:.2f} of {columns.num_cores} cores on average"]
    parts += [] if math.isnan(others) else [f"others took {others:.2f}"]
    parts += [] if math.isnan(memory) else [f"memory: {bytes_text(memory)} at most"]
    return ", ".join(parts) or "CPU: no data"


def _gpu(columns: Columns, device: Device) -> str:
    busy = columns.mean(device.column("busy_share"))
    used, total = (peak(device.column(name)) for name in ("memory_used_bytes", "memory_total_bytes"))
    parts = [] if math.isnan(busy) else [f"busy {share_text(busy)} of the time"]
    parts += [] if math.isnan(used) else [f"memory {bytes_text(used)} of {bytes_text(total)} at most"]
    return f"{device.name}: {', '.join(parts) or 'no data'}"
