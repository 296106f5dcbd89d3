"""What happened, on which machine and how long it took. Judges nothing."""

from voxelocity.observe.clock import Clock, FakeClock, PartTimer, Stopwatch, process_age_s, system_clock
from voxelocity.observe.command import run_command, shell_status, watch_command
from voxelocity.observe.environment import environment
from voxelocity.observe.events import EventLog, read_events
from voxelocity.observe.gpu import GpuSampler
from voxelocity.observe.host import (
    available_memory_bytes,
    cpu_budget,
    file_system_of,
    free_disk_bytes,
    local_ranks,
    total_memory_bytes,
)
from voxelocity.observe.host_sampling import HostSampler
from voxelocity.observe.measure import Timing, measure
from voxelocity.observe.nvtx import nvtx, nvtx_range
from voxelocity.observe.samples import GpuSample, HostSample, PhaseMark, Sample
from voxelocity.observe.sampling import Sampler

__all__ = [
    "Clock",
    "EventLog",
    "FakeClock",
    "GpuSample",
    "GpuSampler",
    "HostSample",
    "HostSampler",
    "PartTimer",
    "PhaseMark",
    "Sample",
    "Sampler",
    "Stopwatch",
    "Timing",
    "available_memory_bytes",
    "cpu_budget",
    "environment",
    "file_system_of",
    "free_disk_bytes",
    "local_ranks",
    "measure",
    "nvtx",
    "nvtx_range",
    "process_age_s",
    "read_events",
    "run_command",
    "shell_status",
    "system_clock",
    "total_memory_bytes",
    "watch_command",
]
