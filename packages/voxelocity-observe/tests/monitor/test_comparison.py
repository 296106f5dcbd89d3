import re

import pytest

from shared.page import Page, assert_golden, assert_safe
from voxelocity_observe.document import write_page
from voxelocity_observe.monitor.comparison import monitor_comparison_document

GIB = 1024**3


def sides(figures):
    return {key: (figure["before"], figure["after"]) for key, figure in figures.items()}


def figures(before, after):
    return sides(monitor_comparison_document(before, after).values["figures"])


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
    assert figures(record(10), record(10, gpus=[gpu()]))["gpu_busy_share"] == (None, pytest.approx(0.8))
    assert "gpu_busy_share" not in figures(record(10), record(10))


def test_one_sentence_says_how_long_and_how_busy(record, gpu):
    document = monitor_comparison_document(record(20, gpus=[gpu(busy_share=0.2)]), record(10, gpus=[gpu()]))
    assert document.verdict == (
        "It took 10 s (before: 20 s); cores were busy 50.0 %, as before; GPUs were busy 80.0 % (before: 20.0 %)."
    )


def test_phases_stand_side_by_side_by_name(record, mark):
    before = record(10, phases=[mark("fit", 0.0, 6.0), mark("validate", 6.0, 4.0)])
    after = record(10, phases=[mark("fit", 0.0, 3.0), mark("save", 3.0, 1.0)])
    by_name = {
        name: sides(found) for name, found in monitor_comparison_document(before, after).values["phases"].items()
    }
    assert list(by_name) == ["fit", "validate", "save"]
    assert by_name["fit"]["seconds"] == (6.0, 3.0)
    assert by_name["validate"]["seconds"] == (4.0, None)


def test_what_spoils_the_figures_is_said(record):
    before = record(10)
    after = record(3, status=-9, environment={"cpu": "Other", "num_cpus": 2})
    assert monitor_comparison_document(before, after).notices == [
        "After, the command was ended by SIGKILL.",
        "After, there are only 3 samples; the means are rough.",
        "The two were made on different machines (cpu: AMD EPYC, Other).",
    ]
    assert monitor_comparison_document(before, before).notices == []


def test_the_page_reads_as_agreed(record, gpu, mark, tmp_path):
    before = record(20, phases=[mark("fit <1>", 0.0, 6.0)])
    after = record(10, gpus=[gpu()], command=("python", "fast.py"))
    page = Page(write_page(monitor_comparison_document(before, after), tmp_path / "both.html").read_text())
    assert_safe(page)
    assert_golden(page, "monitor-comparison")


def test_the_page_of_two_like_records_says_that_nothing_differs(record, tmp_path):
    text = write_page(monitor_comparison_document(record(20), record(20)), tmp_path / "both.html").read_text()
    assert re.search(r"Nothing: all \d+ settings are equal\.", text)
    assert "<h1>python train.py</h1>" in text


def test_as_json_what_differs_is_named(record):
    found = monitor_comparison_document(record(10), record(10, command=("x",))).to_plain()
    assert found["settings"]["command"] == {"before": ["python", "train.py"], "after": ["x"]}
