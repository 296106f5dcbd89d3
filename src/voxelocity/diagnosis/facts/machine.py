"""The machine while a program ran, seen from outside the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine as the command line saw it while the program ran; not an event of the recorder.

    Attributes:
        num_cpus: cores the program may use; `num_machine_cpus` of the machine.
        cpu_share: mean share of `num_cpus` that the program and its children used (1.0: all busy).
        others_share: cores that all other programs on the machine used.
        throttled_share: share of the time in which its control group was held back.
        num_processes, num_threads: highest number of the program with its children.
        memory_bytes, memory_limit_bytes: highest use of the program with its children, and what it could have.
        swap_in_bytes, swap_out_bytes: of the machine in that time.
        major_faults_per_s: pages that had to be read from disk.
        shm_used_bytes, shm_size_bytes: highest use of /dev/shm, and its size.
        disk_read_bytes_per_s: mean.
        gpu_busy: per device, the mean of what NVML calls utilization, for the reader; no rule uses it.
        gpu_memory_bytes, gpu_memory_total_bytes: highest use per device, and its size.
        gpu_throttle_reasons: as NVML names them, with the share of samples.
        gpu_other_processes: other programs seen on the device.
        file_system: kind of the one that holds most of the files the program read ("nfs", "ext4", ...).
    """

    num_cpus: int
    num_machine_cpus: int = 0
    cpu_share: float = 0.0
    others_share: float = 0.0
    throttled_share: float = 0.0
    num_processes: int = 1
    num_threads: int = 1
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    swap_in_bytes: int = 0
    swap_out_bytes: int = 0
    major_faults_per_s: float = 0.0
    shm_used_bytes: int = 0
    shm_size_bytes: int = 0
    disk_read_bytes_per_s: float = 0.0
    gpu_busy: Sequence[float] = ()
    gpu_memory_bytes: Sequence[int] = ()
    gpu_memory_total_bytes: Sequence[int] = ()
    gpu_throttle_reasons: Mapping[str, float] = field(default_factory=dict)
    gpu_other_processes: int = 0
    file_system: str = ""
