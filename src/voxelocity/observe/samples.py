"""What a machine was doing at one moment, as plain records. None stands for what could not be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU, or one slice of it (MIG), at one moment; rates cover the period before.

    Attributes:
        index: of the device; `slice` is the number of its slice, None for the whole.
        busy_share: time in which a kernel ran (what NVML calls utilization), 0 to 1.
        memory_busy_share: time in which its memory was read or written, 0 to 1.
        program_memory_bytes: of the watched program's processes.
        num_other_processes: programs on the device that are not the watched one.
        throttle_reasons: why its clocks are held back, as NVML names them.
    """

    index: int
    slice: int | None = None
    name: str = ""
    uuid: str = ""
    busy_share: float | None = None
    memory_busy_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    program_memory_bytes: int | None = None
    num_other_processes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    pcie_receive_bytes_per_s: float | None = None
    pcie_send_bytes_per_s: float | None = None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """The host at one moment; rates cover the period before.

    Attributes:
        core_shares: busy share of each core of the machine, 0 to 1.
        throttled_share: of the period in which the control group was held back by its quota.
        memory_used_bytes: of the machine or the control group, without pages of files that can be dropped.
        page_cache_bytes: pages of files that can be dropped.
        shm_used_bytes: of /dev/shm.
        major_faults_per_s: pages of the watched program that had to be read from a disk.
        program_cores: CPU time of the watched program and its children, in cores.
        others_cores: of everything else on the machine.
    """

    core_shares: tuple[float, ...] = ()
    throttled_share: float | None = None
    memory_used_bytes: int | None = None
    memory_available_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    shm_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_receive_bytes_per_s: float | None = None
    network_send_bytes_per_s: float | None = None
    major_faults_per_s: float | None = None
    program_cores: float | None = None
    program_memory_bytes: int | None = None
    program_read_bytes_per_s: float | None = None
    num_processes: int | None = None
    num_threads: int | None = None
    others_cores: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The machine at one moment.

    Attributes:
        time_s: since sampling began.
        period_s: since the previous sample.
    """

    time_s: float
    period_s: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseMark:
    """A named stretch of a program, on the time axis of the samples."""

    name: str
    start_s: float
    seconds: float
    color: str = ""
    rank: int = 0
