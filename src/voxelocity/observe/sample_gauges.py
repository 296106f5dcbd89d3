"""A sample of the machine as values for Prometheus: which gauges there are, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from voxelocity.observe.exposition import Gauge, Labeled
from voxelocity.observe.samples import GpuSample, Sample


class _Asked(NamedTuple):
    """A gauge, the field of the sample that it shows, and the factor between their units."""

    gauge: Gauge
    field: str
    scale: int = 1


def _asked(name: str, unit: str, field: str, text: str, scale: int = 1) -> _Asked:
    return _Asked(Gauge(name=f"voxelocity_{name}_{unit}", help=text, unit=unit), field, scale)


_CORES = Gauge(name="voxelocity_cpu_busy_ratio", help="Busy share of each core of the machine.", unit="ratio")
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
_THROTTLED = Gauge(name="voxelocity_gpu_throttled", help="1 for each reason why the clocks are held back now.")


def sample_gauges() -> tuple[Gauge, ...]:
    """Every gauge that `sample_values` may give."""
    return (_CORES, *(asked.gauge for asked in (*_HOST, *_GPU)), _THROTTLED)


def sample_values(sample: Sample, labels: Mapping[str, str]) -> list[tuple[Gauge, list[Labeled]]]:
    """Each gauge with its values; what could not be read is None.

    Args:
        sample: of the machine.
        labels: put on every value, such as the name of a job. Devices have `gpu`, `uuid`, `model` and, for a slice,
            `slice`; cores have `core`.
    """
    shared = dict(labels)
    host = sample.host
    values: list[tuple[Gauge, list[Labeled]]] = [
        (_CORES, [({**shared, "core": str(core)}, share) for core, share in enumerate(host.core_shares)])
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
