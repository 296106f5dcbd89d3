"""What happened, on which machine and how long it took. Judges nothing."""

from voxelocity.observe.clock import Clock, FakeClock, PartTimer, Stopwatch, process_age_s, system_clock
from voxelocity.observe.environment import environment
from voxelocity.observe.events import EventLog, read_events
from voxelocity.observe.host import (
    available_memory_bytes,
    cpu_budget,
    file_system_of,
    free_disk_bytes,
    local_ranks,
    total_memory_bytes,
)
from voxelocity.observe.measure import Timing, measure
from voxelocity.observe.nvtx import nvtx, nvtx_range

__all__ = [
    "Clock",
    "EventLog",
    "FakeClock",
    "PartTimer",
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
    "system_clock",
    "total_memory_bytes",
]
