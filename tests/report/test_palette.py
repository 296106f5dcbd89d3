import re
from importlib import resources
from itertools import combinations

from voxelocity.report.palette import CLASS_COLORS, class_color, css_color


def test_the_first_twenty_one_classes_have_colors_of_their_own():
    colors = [class_color(index) for index in range(1, 22)]
    assert len(set(colors)) == 21
    assert all(0 <= value <= 255 for color in colors for value in color)


def test_the_seven_base_colors_are_far_apart():
    distances = [sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5 for x, y in combinations(CLASS_COLORS, 2)]
    assert min(distances) > 60


def test_charts_and_slices_share_their_colors_on_light_and_dark_pages():
    style = resources.files("voxelocity.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    for index in range(1, len(CLASS_COLORS) + 1):
        assert set(re.findall(rf"--class-{index}: (#\w+);", style)) == {css_color(index)}


def test_a_color_is_written_for_a_style_sheet():
    assert css_color(1) == "#b87a00"
