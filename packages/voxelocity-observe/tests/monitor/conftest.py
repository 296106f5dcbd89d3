"""Made-up records of a monitor, with results that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import GpuSample, HostSample, PhaseMark, Sample

GIB = 1024**3


def make_gpu(index: int = 0, **fields: Any) -> GpuSample:
    values: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "busy_share": 0.8,
        "memory_used_bytes": 20 * GIB,
        "memory_total_bytes": 80 * GIB,
        "power_w": 360.0,
        "power_limit_w": 700.0,
        "temperature_c": 60.0,
        "sm_clock_mhz": 1900.0,
        "memory_clock_mhz": 2619.0,
    }
    return GpuSample(index=index, **{**values, **fields})


def make_host(**fields: Any) -> HostSample:
    values: dict[str, Any] = {
        "core_shares": (0.25, 0.75),
        "memory_used_bytes": 6 * GIB,
        "memory_available_bytes": 18 * GIB,
        "page_cache_bytes": 3 * GIB,
        "swap_used_bytes": 0,
        "disk_read_bytes_per_s": 100.0 * 1024**2,
        "program_cores": 0.5,
        "program_memory_bytes": 2 * GIB,
        "others_cores": 0.25,
    }
    return HostSample(**{**values, **fields})


def make_samples(count: int, *, gpus: Sequence[GpuSample] = (), period_s: float = 1.0, **host: Any) -> list[Sample]:
    """`count` equal samples."""
    seen, devices = make_host(**host), tuple(gpus)
    return [Sample(time_s=period_s * (i + 1), period_s=period_s, host=seen, gpus=devices) for i in range(count)]


def make_record(samples: Sequence[Sample], **fields: Any) -> MonitorRecord:
    values: dict[str, Any] = {
        "command": ("python", "train.py"),
        "status": 0,
        "seconds": samples[-1].time_s if samples else 0.3,
        "period_s": 1.0,
        "own_cpu_s": 0.05,
        "environment": {"cpu": "AMD EPYC", "num_cpus": 2, "memory_bytes": 24 * GIB},
    }
    return MonitorRecord(samples=samples, **{**values, **fields})


@pytest.fixture(scope="session")
def record() -> Callable[..., MonitorRecord]:
    """`record(100, gpus=[...], phases=[...], core_shares=(...))`: a record of this many equal samples."""
    of_record = {"command", "status", "seconds", "phases", "missing", "environment", "own_cpu_s"}

    def make(count: int = 10, **fields: Any) -> MonitorRecord:
        outer = {name: fields.pop(name) for name in of_record & fields.keys()}
        return make_record(make_samples(count, **fields), **outer)

    return make


@pytest.fixture(scope="session")
def gpu() -> Callable[..., GpuSample]:
    return make_gpu


@pytest.fixture(scope="session")
def mark() -> Callable[..., PhaseMark]:
    return lambda name, start_s, seconds, **fields: PhaseMark(name=name, start_s=start_s, seconds=seconds, **fields)
