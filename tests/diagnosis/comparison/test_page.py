import pytest

from voxelocity.diagnosis.comparison.compare import compare_diagnoses
from voxelocity.diagnosis.comparison.page import render_diagnosis_comparison


def test_the_page_shows_both_bars_on_one_scale_and_every_finding(before, after, tmp_path):
    source = render_diagnosis_comparison(before, after, tmp_path / "c.html").read_text(encoding="utf-8")
    words = source.replace("\u00a0", " ").replace("<wbr>", "")
    lanes = source[source.index('<figure class="lanes"') : source.index("</figure>")].split('<div class="lane">')[1:]
    widths = [sum(float(part.split("%")[0]) for part in lane.split('width="')[1:]) for lane in lanes]
    assert widths == pytest.approx([100.0, 100.0 / compare_diagnoses(before, after).achieved], abs=0.01)
    for phrase in ("What is gone", "What is still there", "loader.num_workers", "1.29", before.verdict[20:60]):
        assert phrase in words
    assert "What is new" not in words
