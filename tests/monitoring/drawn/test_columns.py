import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.monitoring.drawn.columns import MAX_POINTS, Columns, peak, thinned
from voxelocity.monitoring.record import MonitorRecord
from voxelocity.observe.samples import GpuSample, HostSample, Sample


def test_cores_give_their_mean_and_their_extremes(record):
    mean, low, high = Columns(record(2, core_shares=(0.1, 0.2, 0.6))).cores
    np.testing.assert_allclose([mean, low, high], [[0.3, 0.3], [0.1, 0.1], [0.6, 0.6]])


def test_cores_that_are_switched_off_do_not_count(record):
    samples = [
        Sample(time_s=float(i), period_s=1.0, host=HostSample(core_shares=shares))
        for i, shares in enumerate([(1.0, 0.0), (1.0,), ()])
    ]
    columns = Columns(replace(record(0), samples=samples))
    np.testing.assert_allclose(columns.cores[0], [0.5, 1.0, math.nan])
    np.testing.assert_allclose(columns.cores[1], [0.0, 1.0, math.nan])
    assert columns.num_cores == 2


def test_what_could_not_be_asked_is_no_number_and_not_zero(record):
    columns = Columns(record(3, swap_used_bytes=None))
    assert np.isnan(columns.host("swap_used_bytes")).all()
    assert math.isnan(columns.mean(columns.host("swap_used_bytes")))
    assert math.isnan(peak(columns.host("swap_used_bytes")))


def test_means_are_over_time_and_not_over_samples(record):
    samples = [
        Sample(time_s=9.0, period_s=9.0, host=HostSample(program_cores=1.0)),
        Sample(time_s=10.0, period_s=1.0, host=HostSample(program_cores=0.0)),
    ]
    columns = Columns(replace(record(0), samples=samples))
    assert columns.mean(columns.host("program_cores")) == pytest.approx(0.9)


def test_a_first_sample_without_a_period_still_has_a_mean(record):
    samples = [Sample(time_s=0.0, period_s=0.0, host=HostSample(program_cores=1.5))]
    columns = Columns(replace(record(0), samples=samples))
    assert columns.mean(columns.host("program_cores")) == 1.5


def test_devices_are_found_wherever_they_appear_and_stand_in_order(record):
    gpus = [(GpuSample(index=1), GpuSample(index=0, slice=2)), (GpuSample(index=0, slice=1, busy_share=0.5),)]
    samples = [Sample(time_s=float(i), period_s=1.0, host=HostSample(), gpus=gpus[i]) for i in range(2)]
    devices = Columns(replace(record(0), samples=samples)).devices
    assert [device.name for device in devices] == ["GPU 0.1", "GPU 0.2", "GPU 1"]
    np.testing.assert_allclose(devices[0].column("busy_share"), [math.nan, 0.5])


def test_the_memory_there_is_comes_from_the_environment_and_else_from_the_samples(record):
    assert Columns(record(2)).memory_limit_bytes == 24 * 1024**3
    bare = Columns(record(2, environment={}, memory_available_bytes=4 * 1024**3))
    assert bare.memory_limit_bytes == 10 * 1024**3
    assert math.isnan(Columns(record(2, environment={}, memory_used_bytes=None)).memory_limit_bytes)


def test_an_empty_record_has_empty_columns():
    columns = Columns(MonitorRecord(seconds=0.0, period_s=1.0))
    assert [column.size for column in columns.cores] == [0, 0, 0]
    assert columns.devices == []
    assert thinned(columns.times_s, columns.host("program_cores")) == []


@given(st.lists(st.floats(0, 100) | st.just(math.nan), min_size=1, max_size=1500))
def test_thinning_keeps_gaps_the_order_and_the_limit(values):
    points = thinned(np.arange(float(len(values))), np.array(values))
    assert len(points) == min(len(values), MAX_POINTS)
    times, thin = zip(*points, strict=True)
    assert list(times) == sorted(times)
    known = [value for value in values if not math.isnan(value)]
    if len(values) <= MAX_POINTS:
        np.testing.assert_array_equal(thin, values)
    elif known:
        assert min(known) - 1e-9 <= np.nanmin(thin)
        assert np.nanmax(thin) <= max(known) + 1e-9
    else:
        assert np.isnan(thin).all()
