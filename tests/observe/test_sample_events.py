"""Samples among the events of a run: whole, few, and the same when they are read back."""

from dataclasses import replace

import pytest

from voxelocity.observe import EventLog, read_events
from voxelocity.observe.sample_events import SampleEvents, sample_of
from voxelocity.observe.samples import GpuSample, HostSample, Sample

SAMPLE = Sample(
    time_s=3.0,
    period_s=10.0,
    host=HostSample(core_shares=(0.123456789, 1.0), memory_used_bytes=5, program_cores=0.5),
    gpus=(GpuSample(index=0, slice=2, busy_share=0.75, throttle_reasons=("SwPowerCap",)),),
)


class Hours:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Hours()


@pytest.fixture
def log(tmp_path, clock):
    with EventLog(tmp_path / "events.jsonl", clock=clock) as log:
        yield log


def test_a_sample_is_the_same_when_it_is_read_back_on_the_time_of_the_run(log, clock):
    clock.now_s = 12.0
    SampleEvents(log)(SAMPLE)
    (event,) = read_events(log.path)
    rounded = replace(SAMPLE, time_s=12.0, host=replace(SAMPLE.host, core_shares=(0.1235, 1.0)))
    assert sample_of(event) == rounded


def test_a_field_of_a_newer_version_is_passed_over(log):
    SampleEvents(log)(SAMPLE)
    (event,) = read_events(log.path)
    event["host"]["not_known_yet"] = 1.0
    assert sample_of(event).host.memory_used_bytes == 5


def test_the_number_of_samples_is_bounded_by_the_logarithm_of_the_time(log, clock):
    told = SampleEvents(log)
    counts = {}
    for ten_seconds in range(1, 6 * 24 * 70 + 1):
        clock.now_s = 10.0 * ten_seconds
        told(SAMPLE)
        if ten_seconds in (100, 6 * 24 * 7, 6 * 24 * 70):
            counts[ten_seconds] = len(read_events(log.path))
    assert counts[100] == 100, "each of the first three hours"
    assert counts[6 * 24 * 7] > 900
    assert counts[6 * 24 * 70] < 1000 * (1 + 2.4)
