from __future__ import annotations

from pathlib import Path

import pytest

from voxelocity.monitoring.record import MonitorRecord
from voxelocity.monitoring.terminal_summary import summary_lines
from voxelocity.observe.samples import GpuSample, HostSample, Sample

GIB = 2**30


def record(*samples, status=0, missing=()):
    return MonitorRecord(
        command=("train",), status=status, seconds=75.0, period_s=1.0, samples=samples, missing=missing
    )


def sample(second, cores, gib, busy, period_s=1.0):
    host = HostSample(
        core_shares=(1.0, 1.0), program_cores=cores, others_cores=0.25, program_memory_bytes=int(gib * GIB)
    )
    gpus = (
        GpuSample(index=0, busy_share=busy, memory_used_bytes=int(gib * GIB), memory_total_bytes=80 * GIB),
        GpuSample(index=1, slice=3),
    )
    return Sample(time_s=second, period_s=period_s, host=host, gpus=gpus)


def test_means_are_over_time_and_memory_is_the_highest():
    lines = summary_lines(
        record(sample(1, 1.0, 2, 0.0), sample(4, 2.0, 1, 1.0, period_s=3.0)), Path("out/monitor.html")
    )
    assert lines == [
        "the command ended with status 0 after 1 min 15 s",
        "CPU: 1.75 of 2 cores on average, others took 0.25, memory: 2.00 GiB at most",
        "GPU 0: busy 75.0 % of the time, memory 2.00 GiB of 80.0 GiB at most",
        "GPU 1.3: no data",
        "see out/monitor.html",
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "ended with status 3"),
        (-9, "was ended by SIGKILL"),
        (-99, "was ended by signal 99"),
        (None, "has not ended yet"),
    ],
)
def test_the_ending_is_named(status, words):
    assert summary_lines(record(status=status), Path("x"))[0] == f"the command {words} after 1 min 15 s"


def test_what_is_missing_is_said_and_so_is_a_time_too_short():
    assert summary_lines(record(missing=["GPUs: none", "said"]), Path("x"), told=["said"])[1:] == [
        "it was too short for a sample",
        "not seen: GPUs: none",
        "see x",
    ]
