"""Samples of days stay few, and what was highest stays; they come back from the events of a run."""

from dataclasses import replace

import pytest

from voxelocity_observe.core.events import EventLog, read_events
from voxelocity_observe.monitor.samples import (
    GpuSample,
    HostSample,
    RankSample,
    Sample,
    SampleEvents,
    ThinnedSamples,
    merge_samples,
    sample_of,
)


def sample(second, *, cores=1.0, memory=0, gpus=(), shares=(0.5,), period_s=1.0):
    host = HostSample(core_shares=shares, program_cores=cores, memory_used_bytes=memory, memory_available_bytes=memory)
    return Sample(time_s=float(second), period_s=period_s, host=host, gpus=gpus)


def test_a_million_seconds_fit_and_lose_neither_time_nor_the_peak():
    thinned = ThinnedSamples(max_samples=16)
    for second in range(1, 1001):
        thinned.add(sample(second, cores=2.0, memory=99 if second == 500 else 1))
        assert len(thinned.samples()) <= 17
    kept = thinned.samples()
    assert sum(s.period_s for s in kept) == 1000.0
    assert kept[-1].time_s == 1000.0
    assert max(s.host.memory_used_bytes for s in kept) == 99
    assert {s.host.program_cores for s in kept} == {2.0}
    assert len({s.period_s for s in kept[:-1]}) == 1


def test_few_samples_are_kept_as_they_are():
    thinned = ThinnedSamples(max_samples=4)
    for second in range(1, 4):
        thinned.add(sample(second, cores=second))
    assert [s.host.program_cores for s in thinned.samples()] == [1, 2, 3]


def test_rates_are_means_over_time_and_extremes_stay():
    merged = merge_samples([sample(1, cores=1.0, memory=5), sample(4, cores=3.0, memory=2, period_s=3.0)])
    assert (merged.time_s, merged.period_s) == (4.0, 4.0)
    assert merged.host.program_cores == pytest.approx(2.5)
    assert (merged.host.memory_used_bytes, merged.host.memory_available_bytes) == (5, 2)
    assert merged.host.swap_used_bytes is None


def test_cores_are_merged_one_by_one_and_the_last_number_of_them_counts():
    assert merge_samples([sample(1, shares=(0.0, 1.0)), sample(2, shares=(1.0, 1.0))]).host.core_shares == (0.5, 1.0)
    assert merge_samples([sample(1, shares=(0.0,)), sample(2, shares=(1.0, 0.5))]).host.core_shares == (1.0, 0.5)


def test_ranks_are_merged_over_the_samples_in_which_they_were_there():
    def of(second, *ranks):
        return Sample(time_s=second, period_s=1.0, host=HostSample(ranks=ranks))

    merged = merge_samples(
        [
            of(1.0, RankSample(rank=0, cores=1.0, memory_bytes=9)),
            of(2.0, RankSample(rank=0, cores=0.5, memory_bytes=7), RankSample(rank=1, cores=0.25, memory_bytes=3)),
        ]
    )
    assert merged.host.ranks == (
        RankSample(rank=0, cores=0.75, memory_bytes=9),
        RankSample(rank=1, cores=0.25, memory_bytes=3),
    )


def test_gpus_are_merged_one_by_one_also_where_one_was_lost():
    first = (
        GpuSample(index=0, busy_share=0.0, temperature_c=60, throttle_reasons=("SwPowerCap",)),
        GpuSample(index=1, name="b", busy_share=1.0),
    )
    second = (GpuSample(index=0, busy_share=1.0, temperature_c=50, throttle_reasons=("HwSlowdown",)),)
    zero, one = merge_samples([sample(1, gpus=first), sample(2, gpus=second)]).gpus
    assert (zero.busy_share, zero.temperature_c) == (0.5, 60)
    assert zero.throttle_reasons == ("SwPowerCap", "HwSlowdown")
    assert (one.index, one.name, one.busy_share) == (1, "b", 1.0)


SAMPLE = Sample(
    time_s=3.0,
    period_s=10.0,
    host=HostSample(
        core_shares=(0.123456789, 1.0),
        memory_used_bytes=5,
        program_cores=0.5,
        ranks=(RankSample(rank=4, cores=0.5, memory_bytes=7),),
    ),
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
    write = SampleEvents(log)
    counts = {}
    for ten_seconds in range(1, 6 * 24 * 70 + 1):
        clock.now_s = 10.0 * ten_seconds
        write(SAMPLE)
        if ten_seconds in (100, 6 * 24 * 7, 6 * 24 * 70):
            counts[ten_seconds] = len(read_events(log.path))
    assert counts[100] == 100, "each of the first three hours"
    assert counts[6 * 24 * 7] > 900
    assert counts[6 * 24 * 70] < 1000 * (1 + 2.4)
