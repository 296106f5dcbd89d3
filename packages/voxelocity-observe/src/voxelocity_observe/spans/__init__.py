"""Named stretches of a program: where they are marked, and what may listen. Judges nothing, prints nothing.

Code marks a stretch with `span`; that is free while nothing listens. A `SpanRecorder` keeps spans with their times,
NVIDIA's profilers see them as NVTX ranges, and `voxelocity monitor` gets the outer ones as phases of its time line.
"""

from voxelocity_observe.spans.meters import CudaClock, CudaPeak, HostPeak, device_clock
from voxelocity_observe.spans.nvtx import has_nvtx
from voxelocity_observe.spans.recorder import SpanRecord, SpanRecorder
from voxelocity_observe.spans.scope import end_range, phase, report_ended_span, span, start_range

__all__ = [
    "CudaClock",
    "CudaPeak",
    "HostPeak",
    "SpanRecord",
    "SpanRecorder",
    "device_clock",
    "end_range",
    "report_ended_span",
    "has_nvtx",
    "phase",
    "span",
    "start_range",
]
