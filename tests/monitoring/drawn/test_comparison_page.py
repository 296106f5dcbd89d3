from voxelocity.monitoring.drawn.comparison_page import render_monitor_comparison


def test_the_page_has_both_sides_phases_and_what_differs(record, gpu, mark, tmp_path):
    before = record(20, phases=[mark("fit <1>", 0.0, 6.0)])
    after = record(10, gpus=[gpu()], command=("python", "fast.py"))
    text = render_monitor_comparison(before, after, tmp_path / "both.html").read_text()
    assert "python train.py → python fast.py" in text
    assert "fit &lt;1&gt;" in text
    assert "Of the whole time" in text
    assert "command" in text
    assert "<script" not in text
    assert "https:" not in text


def test_the_page_of_two_like_records_says_that_nothing_differs(record, tmp_path):
    text = render_monitor_comparison(record(20), record(20), tmp_path / "both.html").read_text()
    assert "Command, period and machine are the same." in text
    assert "<h1>python train.py</h1>" in text
