import math
import re
import xml.etree.ElementTree as ET

import pytest

from voxelocity_observe.document.timeline import Band, Line, TimeBand, Timeline, timeline_svg


def chart(*values, stretches=(), **fields):
    line = Line(name="a", color="accent", points=[(float(i), value) for i, value in enumerate(values)])
    described = {"key": "cpu", "title": "CPU", "y_label": "busy (%)", "until_s": 300.0, "lines": [line], **fields}
    return timeline_svg(Timeline(**described), stretches)


def drawn_points(svg):
    """How many points each part of the line has."""
    path = next(p for p in re.findall(r'<path d="([^"]+)"[^>]*?stroke: var\(--accent\)', svg, re.DOTALL))
    return [part.count("L") + 1 for part in path.split("M")[1:]]


def test_a_chart_takes_its_colors_from_the_page_and_is_one_element():
    band = Band(name="spread", color="class-2", points=[(0.0, 1.0, 2.0), (1.0, 1.0, 3.0)])
    svg = chart(1.0, 2.0, bands=[band], limit=5.0, stretches=[TimeBand(name="t", color="part-3", start_s=0, stop_s=60)])
    root = ET.fromstring(svg)
    assert root.tag == "svg"
    for variable in ("accent", "class-2", "part-3", "chart-target", "chart-ink"):
        assert f"var(--{variable})" in svg
    assert not re.search(r"#010[123]", svg)


def test_a_value_that_is_not_finite_is_a_gap_and_not_a_bridge():
    assert drawn_points(chart(1.0, 2.0, 3.0, 4.0, 5.0)) == [5]
    assert drawn_points(chart(1.0, 2.0, math.nan, 4.0, 5.0, 6.0)) == [2, 3]


def test_a_point_between_two_gaps_is_marked():
    assert "<use" not in re.sub(r'id="cpu-xtick.*?</g>', "", chart(1.0, 2.0, math.nan, 4.0, 5.0), flags=re.DOTALL)
    lonely = chart(1.0, 2.0, math.nan, 4.0, math.nan, 6.0, 7.0)
    assert len(re.findall(r"<use [^>]*fill: var\(--accent\)", lonely)) == 1


def test_a_given_color_of_a_stretch_is_used_as_it_is():
    assert "#cc3366" in chart(1.0, 2.0, stretches=[TimeBand(name="t", color="#cc3366", start_s=0.0, stop_s=9.0)])


def test_charts_of_one_record_have_their_axes_at_one_place():
    def axes_box(svg):
        return re.search(r'id="cpu-patch_2">\s*<path d="([^"]+)"', svg).group(1)

    assert axes_box(chart(1.0, 2.0)) == axes_box(chart(10_000.0, 20_000.0, y_label="something else"))


def test_the_value_axis_begins_at_zero_and_holds_the_limit():
    svg = chart(1.0, 2.0, limit=99.0)
    labels = [float(text) for text in re.findall(r">(\d+)</text>", svg)]
    assert 0.0 in labels
    assert max(labels) >= 80.0


@pytest.mark.parametrize("lines", [[], [Line(name="a", color="accent", points=[])]])
def test_a_chart_without_points_can_be_drawn(lines):
    assert "<svg" in chart(lines=lines)
