"""Samples become rows and rows samples."""

from dataclasses import replace

import pytest

from voxelocity_observe.monitor.nvml import GpuName
from voxelocity_observe.monitor.record import columns, row, row_reader
from voxelocity_observe.monitor.samples import GpuSample, HostSample, RankSample, Sample

GPUS = (
    GpuSample(index=0, name="A", uuid="GPU-a", busy_share=0.5, throttle_reasons=("SwPowerCap", "HwSlowdown")),
    GpuSample(index=1, slice=2, name="B", uuid="MIG-b", memory_used_bytes=7, num_other_processes=0),
)
NAMES = (GpuName(index=0, name="A", uuid="GPU-a"), GpuName(index=1, slice=2, name="B", uuid="MIG-b"))
DEVICES = [(0, None), (1, 2)]
HOST = HostSample(core_shares=(0.25, 1.0), memory_used_bytes=123456789012, program_cores=1.5, num_threads=12)


def _there_and_back(sample, header_of=None):
    header = columns(header_of or sample, DEVICES)
    cells = row(sample, DEVICES, num_cores=2)
    assert len(header) == len(cells) == len(set(header))
    return row_reader(header, NAMES)(cells)


def test_a_sample_comes_back_as_it_was():
    sample = Sample(time_s=1.5, period_s=0.5, host=HOST, gpus=GPUS)
    assert _there_and_back(sample) == sample


def test_names_of_columns_carry_units():
    header = columns(Sample(time_s=1, period_s=1, host=HOST, gpus=GPUS), DEVICES)
    assert header[:3] == ["time_s", "period_s", "throttled_share"]
    expected = {"core1_busy_share", "gpu0_power_w", "gpu1_slice2_memory_used_bytes", "disk_read_bytes_per_s"}
    assert expected <= set(header)


def test_the_memory_of_a_gpu_is_there_as_a_ratio_too():
    gpu = GpuSample(index=0, memory_used_bytes=2, memory_total_bytes=8)
    sample = Sample(time_s=1, period_s=1, host=HOST, gpus=(gpu, *GPUS[1:]))
    cells = dict(zip(columns(sample, DEVICES), row(sample, DEVICES, num_cores=2), strict=True))
    assert (cells["gpu0_memory_ratio"], cells["gpu1_slice2_memory_ratio"]) == ("0.25", "")


def test_a_lost_gpu_leaves_empty_cells_and_is_absent_when_read():
    whole = Sample(time_s=1.0, period_s=1.0, host=HOST, gpus=GPUS)
    without = Sample(time_s=2.0, period_s=1.0, host=HOST, gpus=GPUS[1:])
    assert _there_and_back(without, header_of=whole) == without


def test_cores_that_came_later_are_dropped_and_those_that_went_are_absent():
    more = Sample(time_s=1.0, period_s=1.0, host=HostSample(core_shares=(0.1, 0.2, 0.3)))
    assert _there_and_back(more, header_of=Sample(time_s=1, period_s=1, host=HOST)).host.core_shares == (0.1, 0.2)
    fewer = Sample(time_s=1.0, period_s=1.0, host=HostSample(core_shares=(0.1,)))
    assert _there_and_back(fewer, header_of=Sample(time_s=1, period_s=1, host=HOST)).host.core_shares == (0.1,)


def test_ranks_that_start_after_the_first_row_are_there_when_read():
    first = Sample(time_s=1.0, period_s=1.0, host=HOST)
    ranks = tuple(RankSample(rank=rank, cores=0.5 + rank, memory_bytes=2**31 + rank) for rank in (4, 5))
    later = Sample(time_s=2.0, period_s=1.0, host=replace(HOST, ranks=ranks))
    assert _there_and_back(later, header_of=first) == later
    assert _there_and_back(first, header_of=first) == first


def test_columns_of_a_later_version_are_passed_over():
    read = row_reader(["time_s", "moon_phase", "period_s", "gpu0_taste", "program_cores"])
    assert read(["1", "full", "2", "sweet", "0.5"]) == Sample(
        time_s=1.0, period_s=2.0, host=HostSample(program_cores=0.5)
    )


@pytest.mark.parametrize("cells", [["1", "2"], ["1", "2", "x"], ["1", "2", "3", "4"]])
def test_a_row_that_does_not_fit_is_refused(cells):
    with pytest.raises(ValueError, match=r"cells under 3 columns|could not convert"):
        row_reader(["time_s", "period_s", "program_cores"])(cells)
