"""What happened, on which machine and how long it took. Judges nothing.

- `clock`: where seconds come from. `spans`: stretches that a program marks, and their listeners.
- `sampling`: the machine at regular intervals, by `host_sampling`, `program` (a command and its children) and `gpu`;
  `samples` has the records and thins long ones.
- `place`: which of several processes this is, as its launcher says.
- `host`, `memory_folders`, `environment`: what this process may use and has used, and what it runs on.
- `nvml`, `kernel_files`: the only access to the driver and to the kernel's files; a refused query is a gap.
- `events`, `sinks`, `openmetrics`: facts of a run in its file, in trackers, as text for Prometheus.
- `interleaved_timing`, `measured`: ways to do one thing timed alternating; what was measured, kept for each machine.
- `command`: a command as a child, as if it had been started without us.
"""

from voxelocity.observe.clock import Clock, FakeClock, Stopwatch, process_age_s, system_clock
from voxelocity.observe.environment import environment
from voxelocity.observe.events import EventLog, events_path, read_events
from voxelocity.observe.host import (
    available_memory_bytes,
    cpu_budget,
    cpu_has_fast_bfloat16,
    cpu_name,
    default_cache_folder,
    file_system_of,
    free_disk_bytes,
    is_in_memory,
    peak_device_bytes,
    peak_host_bytes,
    total_memory_bytes,
)
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
    "SpanRecord",
    "SpanRecorder",
    "Stopwatch",
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
    "phase",
    "peak_device_bytes",
    "peak_host_bytes",
    "process_age_s",
    "read_events",
    "span",
    "start_range",
    "system_clock",
    "total_memory_bytes",
]
