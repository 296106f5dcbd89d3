import math
from dataclasses import replace

import pytest

from voxelocity_observe.monitor.columns import Columns
from voxelocity_observe.monitor.samples import RankSample
from voxelocity_observe.monitor.timelines import gpu_timelines, host_timelines, rank_timelines


def by_key(timelines):
    return {timeline.key: timeline for timeline in timelines}


def names(timeline):
    return [line.name for line in timeline.lines]


def test_the_cpu_is_shown_in_per_cent_of_all_cores(record):
    cpu = by_key(host_timelines(Columns(record(3))))["cpu"]
    assert names(cpu) == ["all cores", "the program", "other programs"]
    assert [line.points[0][1] for line in cpu.lines] == [50.0, 25.0, 12.5]
    assert cpu.bands[0].points[0] == (1.0, 25.0, 75.0)
    assert cpu.y_label == "of 2 cores (%)"


def test_memory_stands_in_the_unit_of_its_limit(record):
    memory = by_key(host_timelines(Columns(record(3))))["memory"]
    assert memory.y_label == "GiB"
    assert memory.limit == 24.0
    assert [line.points[0][1] for line in memory.lines] == [6.0, 2.0]


def test_swap_has_a_line_only_where_it_was_used(record):
    assert "swap" not in names(by_key(host_timelines(Columns(record(3))))["memory"])
    swapped = by_key(host_timelines(Columns(record(3, swap_used_bytes=1024**3))))["memory"]
    assert "swap" in names(swapped)


def test_what_nobody_could_ask_has_no_chart(record):
    charts = by_key(host_timelines(Columns(record(3, disk_read_bytes_per_s=None, page_cache_bytes=None))))
    assert set(charts) == {"cpu", "memory"}
    assert host_timelines(Columns(record(0))) == []
    columns = Columns(record(3))
    assert rank_timelines(columns) == gpu_timelines(columns) == [], "one process, no GPU"


def test_each_rank_has_a_line_while_it_is_there(record):
    ranks = tuple(RankSample(rank=rank, cores=0.5 + rank, memory_bytes=(rank + 1) * 2**30) for rank in (0, 1))
    record = record(3, ranks=ranks)
    samples = [replace(sample, host=replace(sample.host, ranks=())) for sample in record.samples[:1]] + list(
        record.samples[1:]
    )
    charts = by_key(rank_timelines(Columns(replace(record, samples=samples))))
    assert names(charts["rank-cpu"]) == names(charts["rank-memory"]) == ["rank 0", "rank 1"]
    values = [value for _, value in charts["rank-cpu"].lines[1].points]
    assert math.isnan(values[0])
    assert values[1:] == [1.5, 1.5]
    assert charts["rank-memory"].lines[1].points[-1] == (3.0, 2.0)


def test_each_gpu_has_a_line_of_its_own_color_and_stroke(record, gpu):
    busy = by_key(gpu_timelines(Columns(record(3, gpus=[gpu(i, busy_share=i / 10) for i in range(8)]))))[
        "gpu-busy-share"
    ]
    assert names(busy) == [f"GPU {i}" for i in range(8)]
    assert len({(line.color, line.stroke) for line in busy.lines}) == 8
    assert {line.color for line in busy.lines} == {"accent", "class-1", "class-2"}
    assert [line.stroke for line in busy.lines[:4]] == ["solid", "solid", "solid", "dashed"]
    assert [line.points[0][1] for line in busy.lines] == pytest.approx([10.0 * i for i in range(8)])


def test_beyond_eight_devices_a_band_shows_their_spread(record, gpu):
    slices = [gpu(0, slice=i, busy_share=i / 20) for i in range(14)]
    busy = by_key(gpu_timelines(Columns(record(3, gpus=slices))))["gpu-busy-share"]
    assert names(busy) == ["mean of 14"]
    assert busy.bands[0].points[0] == (1.0, 0.0, 65.0)
    assert busy.lines[0].points[0][1] == pytest.approx(32.5)


def test_a_driver_that_answers_in_part_gives_part_of_the_charts(record, gpu):
    silent = {"power_w": None, "power_limit_w": None, "temperature_c": None, "sm_clock_mhz": None}
    charts = by_key(gpu_timelines(Columns(record(3, gpus=[gpu(**silent, memory_clock_mhz=None)]))))
    assert set(charts) == {"gpu-busy-share", "gpu-memory"}
    assert charts["gpu-memory"].lines[0].points[0][1] == 25.0


def test_a_hole_in_the_answers_is_a_gap_in_the_line(record, gpu):
    whole = record(5, gpus=[gpu()])
    samples = list(whole.samples)
    samples[2] = replace(samples[2], gpus=(gpu(busy_share=None),))
    busy = by_key(gpu_timelines(Columns(replace(whole, samples=samples))))["gpu-busy-share"]
    assert [math.isnan(value) for _, value in busy.lines[0].points] == [False, False, True, False, False]


def test_power_is_marked_with_its_limit_where_all_have_the_same(record, gpu):
    same = by_key(gpu_timelines(Columns(record(3, gpus=[gpu(0), gpu(1)]))))["gpu-power-w"]
    assert same.limit == 700.0
    mixed = by_key(gpu_timelines(Columns(record(3, gpus=[gpu(0), gpu(1, power_limit_w=400.0)]))))["gpu-power-w"]
    assert mixed.limit is None
