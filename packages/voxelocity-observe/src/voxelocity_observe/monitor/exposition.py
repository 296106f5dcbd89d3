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
from types import SimpleNamespace
from typing import Any

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import put_in_place
from voxelocity_observe.monitor.samples import GpuSample, Sample

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
    from prometheus_client.metrics_core import Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    families = []
    for gauge, values in gauges:
        family = Metric(gauge.name, gauge.help, "gauge", gauge.unit)
        for labels, value in values:
            if value is not None and math.isfinite(value):
                family.add_sample(gauge.name, {name: text for name, text in labels.items() if text}, value)
        families += [family] if family.samples else []
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: families))  # type: ignore[no-untyped-call]
    return text.decode()


def write_exposition(path: str | Path, text: str) -> Path:
    """The path, which now holds the text. It is written next to it, under a name no collector reads, and moved.

    Raises:
        OutputError: the folder is not there, or the file cannot be written.
    """
    target = Path(path)
    try:
        # Replaced every few seconds, and of no use after a power cut.
        put_in_place(target, text.encode("utf-8", "replace"), is_durable=False)
    except OSError as error:
        raise OutputError(
            f"observe.openmetrics: cannot write '{target}': {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to"
        ) from error
    return target


def openmetrics_text(sample: Sample, *, labels: Mapping[str, str] | None = None) -> str:
    """The sample in OpenMetrics 1.0, which is valid in Prometheus' older format too; unknown values are left out.

    Args:
        sample: of the machine.
        labels: put on every value, such as the name of a job, in addition to those of devices and cores.
    """
    return exposition(sample_values(sample, labels or {}))


def write_openmetrics(sample: Sample, path: str | Path, *, labels: Mapping[str, str] | None = None) -> Path:
    """The path, which now holds the sample, moved there in one piece; node_exporter reads `*.prom`.

    Raises:
        OutputError: the folder does not exist, or the file cannot be written.
    """
    return write_exposition(path, openmetrics_text(sample, labels=labels))


_CORES = named_gauge("cpu_busy", "ratio", "Busy share of each core of the machine.")
_BYTES_A_SECOND = "bytes_per_second"

# Each gauge by the field that it shows.
_HOST = {
    "throttled_share": named_gauge("cpu_throttled", "ratio", "Share of time in which the quota held the CPUs back."),
    "memory_used_bytes": named_gauge("memory_used", "bytes", "Memory in use, without pages of files."),
    "memory_available_bytes": named_gauge("memory_available", "bytes", "Memory that a program can still allocate."),
    "page_cache_bytes": named_gauge("memory_page_cache", "bytes", "Pages of files that can be dropped."),
    "shm_used_bytes": named_gauge("memory_shm_used", "bytes", "Memory in use in /dev/shm."),
    "swap_used_bytes": named_gauge("swap_used", "bytes", "Swap in use."),
    "swap_in_bytes_per_s": named_gauge("swap_in", _BYTES_A_SECOND, "Read back from swap."),
    "swap_out_bytes_per_s": named_gauge("swap_out", _BYTES_A_SECOND, "Written to swap."),
    "disk_read_bytes_per_s": named_gauge("disk_read", _BYTES_A_SECOND, "Read from all disks."),
    "disk_write_bytes_per_s": named_gauge("disk_written", _BYTES_A_SECOND, "Written to all disks."),
    "network_receive_bytes_per_s": named_gauge("network_received", _BYTES_A_SECOND, "Received by all networks."),
    "network_send_bytes_per_s": named_gauge("network_sent", _BYTES_A_SECOND, "Sent to all networks."),
    "program_cores": named_gauge("program_cpu", "cores", "CPU time of the watched program and its children, in cores."),
    "others_cores": named_gauge("other_programs_cpu", "cores", "CPU time of everything else, in cores."),
    "program_memory_bytes": named_gauge("program_memory", "bytes", "Memory of the watched program and its children."),
    "program_read_bytes_per_s": named_gauge("program_read", _BYTES_A_SECOND, "Read from disks by the watched program."),
    "major_faults_per_s": named_gauge("program_major_faults", "per_second", "Pages of the program read from a disk."),
    "num_processes": named_gauge("program", "processes", "Processes of the watched program."),
    "num_threads": named_gauge("program", "threads", "Threads of the watched program."),
}
_RANK = {
    "cores": named_gauge("rank_cpu", "cores", "CPU time of a rank and the processes it has started, in cores."),
    "memory_bytes": named_gauge("rank_memory", "bytes", "Memory of a rank and the processes it has started."),
}
_GPU = {
    "busy_share": named_gauge("gpu_busy", "ratio", "Share of time in which a kernel ran."),
    "memory_busy_share": named_gauge("gpu_memory_busy", "ratio", "Share of time in which memory was read or written."),
    "memory_used_bytes": named_gauge("gpu_memory_used", "bytes", "Memory of the device in use."),
    "memory_total_bytes": named_gauge("gpu_memory_size", "bytes", "Memory of the device."),
    "program_memory_bytes": named_gauge("gpu_program_memory", "bytes", "Device memory that the program uses."),
    "num_other_processes": named_gauge("gpu_other_programs", "processes", "Processes of other programs on it."),
    "power_w": named_gauge("gpu_power", "watts", "Power in use."),
    "power_limit_w": named_gauge("gpu_power_limit", "watts", "Power limit."),
    "temperature_c": named_gauge("gpu_temperature", "celsius", "Temperature of the chip."),
    "sm_clock_mhz": named_gauge("gpu_clock", "hertz", "Clock of the processors."),
    "memory_clock_mhz": named_gauge("gpu_memory_clock", "hertz", "Clock of the memory."),
    "pcie_receive_bytes_per_s": named_gauge("gpu_pcie_received", _BYTES_A_SECOND, "Received over PCIe."),
    "pcie_send_bytes_per_s": named_gauge("gpu_pcie_sent", _BYTES_A_SECOND, "Sent over PCIe."),
}
_THROTTLED = named_gauge("gpu_throttled", "", "1 for each reason why the clocks are lowered now.")


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
    devices = [({**shared, **_device_labels(gpu)}, gpu) for gpu in sample.gpus]
    families: Sequence[tuple[Mapping[str, Gauge], Sequence[tuple[Mapping[str, str], Any]]]] = (
        (_RANK, [({**shared, "rank": str(rank.rank)}, rank) for rank in host.ranks]),
        (_HOST, [(shared, host)]),
        (_GPU, devices),
    )
    for gauges, records in families:
        values += [
            (gauge, [(own, _value(record, field)) for own, record in records]) for field, gauge in gauges.items()
        ]
    reasons: list[Labeled] = [({**own, "reason": reason}, 1) for own, gpu in devices for reason in gpu.throttle_reasons]
    return [*values, (_THROTTLED, reasons)]


def _device_labels(gpu: GpuSample) -> dict[str, str]:
    part = "" if gpu.slice is None else str(gpu.slice)
    return {"gpu": str(gpu.index), "slice": part, "uuid": gpu.uuid, "model": gpu.name}


def _value(record: Any, field: str) -> float | None:
    value: float | None = getattr(record, field)
    return value * 1_000_000 if value is not None and field.endswith("_mhz") else value
