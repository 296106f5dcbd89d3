"""What a monitor says at the end, in a few lines."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from voxelocity.monitoring.record import MonitorRecord
from voxelocity.observe.samples import GpuSample, Sample
from voxelocity.report.quantities import bytes_text, duration_text, share_text


def summary_lines(record: MonitorRecord, place: Path, *, told: Collection[str] = ()) -> list[str]:
    """How it ended and how long it took, CPU, memory, each GPU, what is missing, where to look.

    Args:
        record: of the whole time.
        place: the page or the folder of the record.
        told: of what is missing, what was said already.
    """
    lines = [f"the command {_ending(record.status)} after {duration_text(record.seconds)}"]
    if record.samples:
        lines += [_host(record.samples), *_gpus(record.samples)]
    else:
        lines.append("it was too short for a sample")
    lines += [f"not seen: {line}" for line in record.missing if line not in told]
    lines.append(f"see {place}")
    return lines


def _ending(status: int | None) -> str:
    if status is None:
        return "went on"
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"


def _host(samples: Sequence[Sample]) -> str:
    hosts = [sample.host for sample in samples]
    program = _mean((host.program_cores, sample.period_s) for host, sample in zip(hosts, samples, strict=True))
    others = _mean((host.others_cores, sample.period_s) for host, sample in zip(hosts, samples, strict=True))
    cores = max(len(host.core_shares) for host in hosts)
    parts = [] if program is None else [f"CPU: {program:.2f} of {cores} cores on average"]
    parts += [] if others is None else [f"others took {others:.2f}"]
    peak = _peak(host.program_memory_bytes for host in hosts)
    parts += [] if peak is None else [f"memory: {bytes_text(peak)} at most"]
    return ", ".join(parts)


def _gpus(samples: Sequence[Sample]) -> list[str]:
    by_device: dict[tuple[int, int | None], list[tuple[GpuSample, float]]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            by_device.setdefault((gpu.index, gpu.slice), []).append((gpu, sample.period_s))
    lines = []
    for (index, part), seen in by_device.items():
        busy = _mean((gpu.busy_share, period_s) for gpu, period_s in seen)
        peak = _peak(gpu.memory_used_bytes for gpu, _ in seen)
        total = _peak(gpu.memory_total_bytes for gpu, _ in seen)
        name = f"GPU {index}" if part is None else f"GPU {index} slice {part}"
        parts = [] if busy is None else [f"busy {share_text(busy)} of the time"]
        parts += [] if peak is None else [f"memory {bytes_text(peak)} of {bytes_text(total)} at most"]
        lines.append(f"{name}: {', '.join(parts) or 'nothing could be asked'}")
    return lines


def _mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, seconds) for value, seconds in pairs if value is not None]
    total_s = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / total_s if total_s > 0 else None


def _peak(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
