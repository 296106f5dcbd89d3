"""What happened, on which machine and how long it took. Judges nothing."""

from voxelocity.observe.clock import Clock, FakeClock, Stopwatch, Timing, measure, process_age_s, system_clock
from voxelocity.observe.command import run_command, shell_status, watch_command
from voxelocity.observe.environment import environment
from voxelocity.observe.events import EventLog, events_path, read_events
from voxelocity.observe.gpu import GpuSampler
from voxelocity.observe.host import (
    allowed_cpus,
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    cpu_name,
    default_cache_folder,
    file_system_of,
    free_disk_bytes,
    is_in_memory,
    local_ranks,
    peak_device_bytes,
    peak_host_bytes,
    process_rank,
    total_memory_bytes,
)
from voxelocity.observe.host_sampling import HostSampler
from voxelocity.observe.samples import GpuSample, HostSample, PhaseMark, Sample
from voxelocity.observe.sampling import Sampler
from voxelocity.observe.spans import (
    SpanRecord,
    SpanRecorder,
    device_clock,
    end_range,
    ended_span,
    has_nvtx,
    phase,
    span,
    start_range,
)

__all__ = [
    "Clock",
    "EventLog",
    "FakeClock",
    "GpuSample",
    "GpuSampler",
    "HostSample",
    "HostSampler",
    "PhaseMark",
    "Sample",
    "Sampler",
    "SpanRecord",
    "SpanRecorder",
    "Stopwatch",
    "Timing",
    "allowed_cpus",
    "available_memory_bytes",
    "cpu_budget",
    "cpu_has_fast_bfloat16",
    "cpu_name",
    "default_cache_folder",
    "device_clock",
    "end_range",
    "ended_span",
    "environment",
    "events_path",
    "file_system_of",
    "free_disk_bytes",
    "is_in_memory",
    "has_nvtx",
    "local_ranks",
    "measure",
    "phase",
    "peak_device_bytes",
    "peak_host_bytes",
    "process_age_s",
    "process_rank",
    "read_events",
    "run_command",
    "shell_status",
    "span",
    "start_range",
    "system_clock",
    "total_memory_bytes",
    "watch_command",
]
