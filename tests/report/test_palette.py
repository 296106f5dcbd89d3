from itertools import combinations

from voxelocity.report.palette import CLASS_COLOURS, class_colour, css_colour


def test_the_first_twenty_one_classes_have_colours_of_their_own():
    colours = [class_colour(index) for index in range(1, 22)]
    assert len(set(colours)) == 21
    assert all(0 <= value <= 255 for colour in colours for value in colour)


def test_the_seven_base_colours_are_far_apart():
    distances = [sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5 for x, y in combinations(CLASS_COLOURS, 2)]
    assert min(distances) > 60


def test_a_colour_is_written_for_a_style_sheet():
    assert css_colour(1) == "#e69f00"
