import math

import pytest

from voxelocity.monitoring.drawn.comparison import (
    compare_records,
    comparison_sentence,
)

GIB = 1024**3


def figures(before, after):
    return {one.key: (one.before, one.after) for one in compare_records(before, after).figures}


def test_means_are_over_time_peaks_are_the_highest_and_rates_become_sums(record, gpu):
    before = record(20, gpus=[gpu(busy_share=0.2), gpu(1, busy_share=0.4, memory_used_bytes=30 * GIB)])
    after = record(10, gpus=[gpu(busy_share=0.9)], core_shares=(1.0, 1.0), disk_read_bytes_per_s=0.0)
    found = figures(before, after)
    assert found["seconds"] == (20.0, 10.0)
    assert found["cpu_busy_share"] == (0.5, 1.0)
    assert found["gpu_busy_share"] == pytest.approx((0.3, 0.9))
    assert found["gpu_memory_peak_bytes"] == (30 * GIB, 20 * GIB)
    assert found["disk_read_bytes"] == (20 * 100 * 1024**2, 0.0)
    assert found["gpu_energy_wh"] == pytest.approx((2 * 20 * 360 / 3600, 10 * 360 / 3600))


def test_what_neither_could_ask_is_left_out_and_what_one_could_not_has_no_value(record, gpu):
    found = figures(record(10), record(10, gpus=[gpu()]))
    assert math.isnan(found["gpu_busy_share"][0])
    assert "gpu_busy_share" not in figures(record(10), record(10))


def test_one_sentence_says_how_long_and_how_busy(record, gpu):
    found = compare_records(record(20, gpus=[gpu(busy_share=0.2)]), record(10, gpus=[gpu(busy_share=0.9)]))
    assert comparison_sentence(found) == (
        "It took 10 s instead of 20 s; cores were busy 50.0 % instead of 50.0 %; GPUs 90.0 % instead of 20.0 %."
    )


def test_phases_stand_side_by_side_by_name(record, mark):
    before = record(10, phases=[mark("fit", 0.0, 6.0), mark("validate", 6.0, 4.0)])
    after = record(10, phases=[mark("fit", 0.0, 3.0), mark("save", 3.0, 1.0)])
    found = compare_records(before, after)
    by_name = {phase.name: {one.key: (one.before, one.after) for one in phase.figures} for phase in found.phases}
    assert list(by_name) == ["fit", "validate", "save"]
    assert by_name["fit"]["seconds"] == (6.0, 3.0)
    assert by_name["validate"]["seconds"][0] == 4.0
    assert math.isnan(by_name["validate"]["seconds"][1])


def test_what_spoils_the_figures_is_said(record):
    before = record(10)
    after = record(3, status=-9, environment={"cpu": "Other", "num_cpus": 2})
    assert compare_records(before, after).notices == [
        "After, the command was ended by SIGKILL.",
        "After has only 3 samples; its means are rough.",
        "The two were made on different machines (cpu: AMD EPYC, Other).",
    ]
    assert compare_records(before, before).notices == []
