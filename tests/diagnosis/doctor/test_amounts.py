from __future__ import annotations

import pytest

from voxelocity.diagnosis.doctor.amounts import count_text, rate_text, size_text, time_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (64 * 2**20, "64 MiB"), (25_276_514_304, "23.5 GiB"), (1023 * 2**30, "1023 GiB"), (2**60, "1024 PiB")],
)
def test_sizes_are_in_binary_units(num_bytes, text):
    assert size_text(num_bytes) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(4.2e6, "4.2 MB/s"), (98e6, "98 MB/s"), (830e6, "830 MB/s"), (3.2e9, "3.2 GB/s")]
)
def test_rates_are_in_the_units_of_disks(rate, text):
    assert rate_text(rate) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.154, "0.15 s"), (4.2, "4.2 s"), (42, "42 s"), (720, "12 min")])
def test_times_are_in_the_unit_that_reads_best(seconds, text):
    assert time_text(seconds) == text


def test_one_is_singular():
    assert (count_text(1, "core"), count_text(1200, "core")) == ("1 core", "1,200 cores")
