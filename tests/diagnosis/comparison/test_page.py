import re

import pytest

from voxelocity.diagnosis.comparison.compare import compare_diagnoses
from voxelocity.diagnosis.comparison.page import diagnosis_comparison_document
from voxelocity.report import write_page


def test_the_page_shows_both_bars_on_one_scale_and_every_finding(before, after, tmp_path):
    source = write_page(diagnosis_comparison_document(before, after), tmp_path / "c.html").read_text(encoding="utf-8")
    words = source.replace("\u00a0", " ").replace("<wbr>", "")
    bars = re.findall(r'<svg class="bar".*?</svg>', source, re.DOTALL)
    widths = [sum(float(width) for width in re.findall(r'width="([\d.]+)%"', bar)) for bar in bars]
    assert widths == pytest.approx([100.0, 100.0 / compare_diagnoses(before, after).achieved], abs=0.01)
    for phrase in ("What is gone", "What is still there", "loader.num_workers", "1.29", before.verdict[20:60]):
        assert phrase in words
    assert "What is new" not in words
