import re

import pytest

from voxelocity.monitoring.drawn.comparison_page import monitor_comparison_document
from voxelocity.report import write_page


def test_the_page_has_both_sides_phases_and_what_differs(record, gpu, mark, tmp_path):
    before = record(20, phases=[mark("fit <1>", 0.0, 6.0)])
    after = record(10, gpus=[gpu()], command=("python", "fast.py"))
    text = write_page(monitor_comparison_document(before, after), tmp_path / "both.html").read_text()
    assert "python train.py → python fast.py" in text
    assert "fit &lt;1&gt;" in text
    assert "Of the whole time" in text
    assert "command" in text
    assert "<script" not in text
    assert "https:" not in text


def test_the_page_of_two_like_records_says_that_nothing_differs(record, tmp_path):
    text = write_page(monitor_comparison_document(record(20), record(20)), tmp_path / "both.html").read_text()
    assert re.search(r"Nothing: all \d+ settings are equal\.", text)
    assert "<h1>python train.py</h1>" in text


def test_as_json_nothing_is_nan(record, gpu):
    found = monitor_comparison_document(record(10), record(10, gpus=[gpu()], command=("x",))).to_plain()
    assert found["figures"]["gpu_busy_share"]["before"] is None
    assert found["figures"]["gpu_busy_share"]["after"] == pytest.approx(0.8)
    assert found["settings"]["command"] == {"before": ["python", "train.py"], "after": ["x"]}
