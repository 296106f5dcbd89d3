from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from importlib import resources
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity_observe.document.charts import (
    CLASS_COLORS,
    LIGHT_COLORS,
    MAX_POINTS,
    STAND_INS,
    Series,
    class_color,
    css,
    smoothed,
    thinned,
    time_chart,
    xy_chart,
)

LINE = Series(points=((0.0, 0.1), (300.0, 0.9)))


def test_a_chart_is_one_element_that_takes_colors_and_fonts_from_the_page():
    svg = time_chart("dice", [LINE, Series(points=((1.0, 0.2),), color="class-2")], y_label="Dice", target=0.8)
    assert "var(--accent)" in svg
    assert "var(--chart-target)" in svg
    assert "font-family" not in svg
    assert not re.search(r"#0[12]0[12]", svg)
    assert not re.findall(r"(?:fill|stroke): #", svg.replace("stroke: #000000", ""))
    root = ET.fromstring(svg)
    assert (root.tag, root.get("width")) == ("svg", None)
    assert root.get("viewBox")
    assert "http" not in svg
    assert "<style" not in svg


def test_ids_are_unique_among_charts_and_every_reference_is_kept():
    first, second = (time_chart(name, [LINE], y_label="y") for name in ("first", "second"))
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in (first, second)]
    assert all(len(found) == len(set(found)) > 5 for found in ids)
    assert not set(ids[0]) & set(ids[1])
    for svg, found in zip((first, second), ids, strict=True):
        references = re.findall(r'(?:url\(|href=")#([^)"]+)', svg)
        assert references
        assert set(references) <= set(found)


def test_the_same_chart_is_the_same_text():
    assert time_chart("a", [LINE], y_label="y") == time_chart("a", [LINE], y_label="y")


@pytest.mark.parametrize(
    ("seconds", "unit"), [(90.0, "seconds"), (600.0, "minutes"), (10_000.0, "hours"), (400_000.0, "days")]
)
def test_the_time_axis_takes_a_unit_that_suits_also_beyond_the_last_point(seconds, unit):
    assert f"time ({unit})" in time_chart("a", [Series(points=((0.0, 1.0), (seconds, 2.0)))], y_label="y")
    assert f"time ({unit})" in time_chart("a", [Series(points=())], y_label="y", until_s=seconds)


def test_a_single_point_is_seen():
    lonely = time_chart("a", [Series(points=((1.0, 0.5),), color="class-3", style="thin")], y_label="y")
    assert re.search(r"<use [^>]*fill: var\(--class-3\)", lonely)


def test_values_that_are_not_finite_are_left_out():
    clean = time_chart("a", [Series(points=((0.0, 1.0), (2.0, 3.0)))], y_label="y")
    assert time_chart("a", [Series(points=((0.0, 1.0), (1.0, math.nan), (2.0, 3.0)))], y_label="y") == clean


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=2000))
def test_thinning_keeps_the_mean_and_the_limit(values):
    points = [(float(i), value) for i, value in enumerate(values)]
    thin = thinned([*points, (1e4, math.nan), (2e4, math.inf)])
    assert len(thin) == min(len(points), MAX_POINTS)
    assert all(a[0] < b[0] for a, b in itertools.pairwise(thin))
    assert min(values) - 1e-9 <= min(y for _, y in thin)
    assert max(y for _, y in thin) <= max(values) + 1e-9


def test_smoothing_keeps_a_straight_line_where_it_has_both_sides():
    points = [(float(i), 2.0 * i) for i in range(90)]
    assert smoothed(points)[3:-3] == [pytest.approx(point) for point in points[3:-3]]
    assert smoothed([]) == []


def test_stacked_layers_take_the_colors_of_the_parts_and_end_where_they_should():
    from voxelocity_observe.document.charts import stacked_chart

    layers = [
        Series(points=[(1.0, 1.0), (10.0, 1.0)], color="part-5"),
        Series(points=[(1.0, 1.0), (10.0, 30.0)], color="part-other"),
    ]
    svg = stacked_chart("steps", layers, x_label="step", y_label="seconds", y_limit=3.0)
    assert "var(--part-5)" in svg
    assert "var(--part-other)" in svg
    assert "#0103" not in svg
    labels = [float(text) for text in re.findall(r">([\d.]+)</text>", svg)]
    assert max(labels) == 10.0, "the axis of steps, as the value axis ends at 3"
    assert svg == stacked_chart("steps", layers, x_label="step", y_label="seconds", y_limit=3.0)


def test_the_first_twenty_one_classes_have_colors_of_their_own():
    colors = [class_color(index) for index in range(1, 22)]
    assert len(set(colors)) == 21
    assert all(0 <= value <= 255 for color in colors for value in color)


def test_the_seven_base_colors_are_far_apart():
    distances = [sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5 for x, y in combinations(CLASS_COLORS, 2)]
    assert min(distances) > 60


def test_charts_and_slices_share_their_colors_on_light_and_dark_pages():
    style = resources.files("voxelocity_observe.document").joinpath("templates/style.css").read_text(encoding="utf-8")
    for index in range(1, len(CLASS_COLORS) + 1):
        assert set(re.findall(rf"--class-{index}: (#\w+);", style)) == {css(class_color(index))}


def test_pictures_have_the_light_colors_of_the_pages():
    style = resources.files("voxelocity_observe.document").joinpath("templates/style.css").read_text(encoding="utf-8")
    style = style[: style.index("prefers-color-scheme: dark")]
    for name in set(LIGHT_COLORS) - {"chart-ink", "chart-grid"}:
        assert name in STAND_INS
        assert f"--{name}: {LIGHT_COLORS[name]};" in style, name


def test_points_crosses_and_marks_over_a_number_are_drawn():
    points = [Series(points=[(1.0, 2.0), (2.0, math.nan), (3.0, 4.0)])]
    plain = xy_chart("xy", points, x_label="trial", y_label="rate")
    marked = xy_chart("xy", points, x_label="trial", y_label="rate", crosses=[2.0], marked=[1.0])
    for svg in (plain, marked):
        ET.fromstring(svg)
        assert "trial" in svg
        assert "var(--accent)" in svg
    assert "var(--chart-target)" not in plain
    assert marked.count("var(--chart-target)") >= 2


def test_lines_over_factors_have_powers_of_ten():
    line = [Series(points=[(10.0**power, float(power)) for power in range(-6, 1)])]
    svg = xy_chart("log", line, x_label="learning rate", y_label="loss", are_lines=True, has_log_x=True)
    ET.fromstring(svg)
    texts = "".join(re.findall(r">([^<>]+)</t(?:ext|span)>", svg))
    assert "10" in texts
