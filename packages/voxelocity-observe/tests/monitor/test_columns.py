from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity_observe.monitor.columns import MAX_POINTS, Columns, peak, phases_of, stretches_of, thinned
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import GpuSample, HostSample, Sample


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


def test_phases_stand_in_the_order_in_which_they_began(mark):
    phases = phases_of([mark("validate", 5.0, 1.0), mark("train", 0.0, 5.0), mark("validate", 10.0, 2.0)])
    assert [(phase.name, phase.count, phase.seconds) for phase in phases] == [("train", 1, 5.0), ("validate", 2, 3.0)]
    assert phases[0].color != phases[1].color


def test_a_phase_within_itself_counts_once(mark):
    (phase,) = phases_of([mark("step", 0.0, 4.0), mark("step", 1.0, 1.0), mark("step", 3.0, 3.0)])
    assert phase.count == 3
    assert phase.edges_s.tolist() == [0.0, 6.0]


def test_the_time_of_a_phase_is_reported_for_any_stretch(mark):
    (phase,) = phases_of([mark("step", 1.0, 1.0), mark("step", 3.0, 2.0)])
    starts, stops = np.array([0.0, 1.5, 2.0, 0.0, 9.0]), np.array([1.0, 3.5, 3.0, 9.0, 10.0])
    assert phase.within(starts, stops).tolist() == [0.0, 1.0, 0.0, 3.0, 0.0]


def test_only_the_lowest_rank_is_shown(mark):
    phases = phases_of([mark("train", 0.0, 5.0, rank=1), mark("train", 1.0, 2.0, rank=0)])
    assert [phase.seconds for phase in phases] == [2.0]


def test_a_phase_of_no_length_is_none(mark):
    assert phases_of([mark("nothing", 1.0, 0.0)]) == []
    assert phases_of([]) == []


def test_beyond_twelve_names_the_shorter_ones_are_put_together(mark):
    phases = phases_of([mark(f"case {i}", float(i), 0.5 + 0.01 * i) for i in range(40)])
    assert len(phases) == 12
    assert phases[-1].name == "29 others"
    assert phases[-1].color == "part-other"
    assert sum(phase.count for phase in phases) == 40


def test_a_color_that_was_given_is_kept_and_anything_else_ignored(mark):
    phases = phases_of([mark("a", 0.0, 1.0, color="#ff8800"), mark("b", 1.0, 1.0, color='red"><script>')])
    assert phases[0].color == "#ff8800"
    assert phases[1].color.startswith("part-")


def test_few_stretches_are_exact_and_an_inner_phase_parts_the_one_around_it(mark):
    phases = phases_of([mark("outer", 0.0, 10.0), mark("inner", 2.0, 3.0)])
    stretches = stretches_of(phases, 8.0)
    assert [(s.name, s.start_s, s.stop_s) for s in stretches] == [
        ("outer", 0.0, 2.0),
        ("inner", 2.0, 5.0),
        ("outer", 5.0, 8.0),
    ]
    assert stretches_of(phases, 0.0) == []
    (early,) = stretches_of(phases_of([mark("start-up", -1.5, 4.0)]), 8.0)
    assert (early.start_s, early.stop_s) == (0.0, 2.5)


def test_many_stretches_become_few_cells_and_the_longest_in_a_cell_leads(mark):
    marks = [mark("train" if i % 10 else "validate", i * 0.01, 0.009) for i in range(20_000)]
    marks += [mark("report", 200.0, 100.0)]
    stretches = stretches_of(phases_of(marks), 400.0)
    assert len(stretches) <= 300
    assert [s.name for s in stretches] == ["train", "report"]
    assert stretches[0].stop_s == pytest.approx(200.0, abs=400 / 300)
    assert stretches[1].stop_s == pytest.approx(300.0, abs=400 / 300)


def test_among_phases_that_fill_a_cell_the_innermost_leads(mark):
    marks = [mark("run", 0.0, 300.0)]
    marks += [mark("train" if i % 2 else "wait", i * 1.0, 1.0) for i in range(100)]
    marks += [mark("steps", 200.0 + i, 0.5) for i in range(100)]
    names = [s.name for s in stretches_of(phases_of(marks), 300.0)]
    assert names[:3] == ["wait", "train", "wait"]
    assert "run" in names
