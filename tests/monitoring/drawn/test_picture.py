from matplotlib.image import imread

from voxelocity.monitoring.drawn.page import render_monitor_page
from voxelocity.monitoring.drawn.picture import _COLORS, render_monitor_png
from voxelocity.report.charts import STAND_INS


def test_a_picture_has_a_row_for_each_chart(record, gpu, mark, tmp_path):
    host, both = tmp_path / "host.png", tmp_path / "both.png"
    assert render_monitor_png(record(30), host) == host
    render_monitor_png(record(30, gpus=[gpu()], phases=[mark("$train$", 0.0, 9.0)]), both)
    rows = [imread(path).shape[0] for path in (host, both)]
    assert rows[1] - rows[0] == 6 * 220
    assert imread(both).std() > 0.05


def test_a_record_without_samples_has_a_picture_that_says_so(record, tmp_path):
    assert imread(render_monitor_png(record(0), tmp_path / "empty.png")).shape[0] < 400


def test_a_phase_is_seen_in_the_picture(record, mark, tmp_path):
    plain, shaded = record(30), record(30, phases=[mark("train", 0.0, 30.0, color="#ff0000")])
    pictures = [imread(render_monitor_png(made, tmp_path / "p.png"))[:, :, :3] for made in (plain, shaded)]
    reddish = [((p[:, :, 0] - p[:, :, 1]) > 0.15).mean() for p in pictures]
    assert reddish[1] > reddish[0] + 0.3


def test_the_picture_has_the_colors_of_the_page(record, tmp_path):
    style = render_monitor_page(record(2), tmp_path / "page.html").read_text(encoding="utf-8")
    style = style[: style.index("prefers-color-scheme: dark")]
    for name in set(_COLORS) - {"chart-ink", "chart-grid"}:
        assert name in STAND_INS
        assert f"--{name}: {_COLORS[name]};" in style, name
