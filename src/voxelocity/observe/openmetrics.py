"""Values for Prometheus, as text that both of its dialects read, and the gauges of a sample of the machine.

OpenMetrics wants `# UNIT` lines, whose unit ends the name, and `# EOF`, and gives counters, infos and states forms of
their own; the older text of Prometheus, which node_exporter's textfile collector reads, knows neither those types nor
times of single values, and takes `# UNIT` and `# EOF` for comments. Gauges without times are the same in both, so there
are only gauges here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from voxelocity.core.errors import OutputError
from voxelocity.core.whole_file import put_in_place
from voxelocity.observe.samples import GpuSample, Sample

_NAME = re.compile(r"[a-z][a-z0-9_]*")

Labeled = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A quantity that goes up and down.

    Attributes:
        name: in lower case, ending in its unit.
        help: what it is, in one line.
        unit: in base units (bytes, seconds, ratio, watts); "" for a bare number.
    """

    name: str
    help: str
    unit: str = ""

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert self.name.endswith(f"_{self.unit}" if self.unit else ""), f"{self.name} ends in its unit {self.unit}"


def named_gauge(name: str, unit: str, text: str) -> Gauge:
    """A gauge of ours, its name completed with our prefix and its unit."""
    return Gauge(name=f"voxelocity_{name}" + (f"_{unit}" if unit else ""), help=text, unit=unit)


def exposition(gauges: Iterable[tuple[Gauge, Sequence[Labeled]]]) -> str:
    """The text of all gauges with their values. What is None or not finite is left out, and so is an empty gauge."""
    lines: list[str] = []
    for gauge, values in gauges:
        known = [(labels, value) for labels, value in values if value is not None and math.isfinite(value)]
        if not known:
            continue
        lines.append(f"# HELP {gauge.name} {_escaped(gauge.help)}")
        lines.append(f"# TYPE {gauge.name} gauge")
        if gauge.unit:
            lines.append(f"# UNIT {gauge.name} {gauge.unit}")
        lines.extend(f"{gauge.name}{_label_text(labels)} {_value_text(value)}" for labels, value in known)
    return "\n".join([*lines, "# EOF"]) + "\n"


def write_exposition(path: str | Path, text: str) -> Path:
    """The path, which now holds the text. It is written next to it, under a name no collector reads, and moved.

    Raises:
        OutputError: the folder is not there, or the file cannot be written.
    """
    target = Path(path)
    try:
        # Replaced every few seconds, and of no use after a power cut.
        put_in_place(target, text.encode(), is_durable=False)
    except OSError as error:
        raise OutputError(
            f"observe.openmetrics: cannot write '{target}': {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to"
        ) from error
    return target


def _label_text(labels: Mapping[str, str]) -> str:
    texts = [f'{name}="{_escaped(value, quote=True)}"' for name, value in labels.items() if value]
    return "{" + ",".join(texts) + "}" if texts else ""


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _value_text(value: float) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else repr(float(value))


class _Asked(NamedTuple):
    """A gauge, the field of the sample that it shows, and the factor between their units."""

    gauge: Gauge
    field: str
    scale: int = 1


def _asked(name: str, unit: str, field: str, text: str, scale: int = 1) -> _Asked:
    return _Asked(named_gauge(name, unit, text), field, scale)


_CORES = named_gauge("cpu_busy", "ratio", "Busy share of each core of the machine.")
_MEGA = 1_000_000
_BYTES_A_SECOND = "bytes_per_second"

_HOST = (
    _asked("cpu_throttled", "ratio", "throttled_share", "Share of time in which the quota held the CPUs back."),
    _asked("memory_used", "bytes", "memory_used_bytes", "Memory in use, without pages of files."),
    _asked("memory_available", "bytes", "memory_available_bytes", "Memory that a program can still take."),
    _asked("memory_page_cache", "bytes", "page_cache_bytes", "Pages of files that can be dropped."),
    _asked("memory_shm_used", "bytes", "shm_used_bytes", "Memory in use in /dev/shm."),
    _asked("swap_used", "bytes", "swap_used_bytes", "Swap in use."),
    _asked("swap_in", _BYTES_A_SECOND, "swap_in_bytes_per_s", "Read back from swap."),
    _asked("swap_out", _BYTES_A_SECOND, "swap_out_bytes_per_s", "Written to swap."),
    _asked("disk_read", _BYTES_A_SECOND, "disk_read_bytes_per_s", "Read from all disks."),
    _asked("disk_written", _BYTES_A_SECOND, "disk_write_bytes_per_s", "Written to all disks."),
    _asked("network_received", _BYTES_A_SECOND, "network_receive_bytes_per_s", "Received by all networks."),
    _asked("network_sent", _BYTES_A_SECOND, "network_send_bytes_per_s", "Sent to all networks."),
    _asked("program_cpu", "cores", "program_cores", "CPU time of the watched program and its children, in cores."),
    _asked("other_programs_cpu", "cores", "others_cores", "CPU time of everything else, in cores."),
    _asked("program_memory", "bytes", "program_memory_bytes", "Memory of the watched program and its children."),
    _asked("program_read", _BYTES_A_SECOND, "program_read_bytes_per_s", "Read from disks by the watched program."),
    _asked("program_major_faults", "per_second", "major_faults_per_s", "Pages of the program read from a disk."),
    _asked("program", "processes", "num_processes", "Processes of the watched program."),
    _asked("program", "threads", "num_threads", "Threads of the watched program."),
)
_RANK = (
    _asked("rank_cpu", "cores", "cores", "CPU time of a rank and the processes it has started, in cores."),
    _asked("rank_memory", "bytes", "memory_bytes", "Memory of a rank and the processes it has started."),
)
_GPU = (
    _asked("gpu_busy", "ratio", "busy_share", "Share of time in which a kernel ran."),
    _asked("gpu_memory_busy", "ratio", "memory_busy_share", "Share of time in which the memory was read or written."),
    _asked("gpu_memory_used", "bytes", "memory_used_bytes", "Memory of the device in use."),
    _asked("gpu_memory_size", "bytes", "memory_total_bytes", "Memory of the device."),
    _asked("gpu_program_memory", "bytes", "program_memory_bytes", "Device memory that the program uses."),
    _asked("gpu_other_programs", "processes", "num_other_processes", "Processes on it that are not the program's."),
    _asked("gpu_power", "watts", "power_w", "Power drawn."),
    _asked("gpu_power_limit", "watts", "power_limit_w", "Power that it may draw."),
    _asked("gpu_temperature", "celsius", "temperature_c", "Temperature of the chip."),
    _asked("gpu_clock", "hertz", "sm_clock_mhz", "Clock of the processors.", _MEGA),
    _asked("gpu_memory_clock", "hertz", "memory_clock_mhz", "Clock of the memory.", _MEGA),
    _asked("gpu_pcie_received", _BYTES_A_SECOND, "pcie_receive_bytes_per_s", "Received over PCIe."),
    _asked("gpu_pcie_sent", _BYTES_A_SECOND, "pcie_send_bytes_per_s", "Sent over PCIe."),
)
_THROTTLED = named_gauge("gpu_throttled", "", "1 for each reason why the clocks are held back now.")


def sample_values(sample: Sample, labels: Mapping[str, str]) -> list[tuple[Gauge, list[Labeled]]]:
    """Every gauge with its values; what could not be read is None.

    Args:
        sample: of the machine.
        labels: put on every value, such as the name of a job. Devices have `gpu`, `uuid`, `model` and, for a slice,
            `slice`; cores have `core`, ranks `rank`.
    """
    shared = dict(labels)
    host = sample.host
    values: list[tuple[Gauge, list[Labeled]]] = [
        (_CORES, [({**shared, "core": str(core)}, share) for core, share in enumerate(host.core_shares)])
    ]
    values += [
        (asked.gauge, [({**shared, "rank": str(one.rank)}, getattr(one, asked.field)) for one in host.ranks])
        for asked in _RANK
    ]
    values += [(asked.gauge, [(shared, _scaled(getattr(host, asked.field), asked.scale))]) for asked in _HOST]
    devices = [({**shared, **_device_labels(gpu)}, gpu) for gpu in sample.gpus]
    values += [
        (asked.gauge, [(own, _scaled(getattr(gpu, asked.field), asked.scale)) for own, gpu in devices])
        for asked in _GPU
    ]
    reasons: list[Labeled] = [({**own, "reason": reason}, 1) for own, gpu in devices for reason in gpu.throttle_reasons]
    return [*values, (_THROTTLED, reasons)]


def _device_labels(gpu: GpuSample) -> dict[str, str]:
    part = "" if gpu.slice is None else str(gpu.slice)
    return {"gpu": str(gpu.index), "slice": part, "uuid": gpu.uuid, "model": gpu.name}


def _scaled(value: float | None, scale: int) -> float | None:
    return None if value is None else value * scale
