import itertools

import pytest

from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.document.blocks import side_by_side, time_split


def part(name, seconds):
    return TimeShare(name=name, seconds=seconds, share=seconds / 10.0)


def test_the_largest_part_leads_and_the_remainder_is_grey():
    names = ["plan", "cache", "training", "other"]
    split = time_split("Time", [part(n, s) for n, s in zip(names, (1.0, 2.0, 6.0, 1.0), strict=True)])
    (bar,) = split.bars
    colors = ["var(--part-2)", "var(--part-3)", "var(--part-1)", "var(--part-other)"]
    assert [segment.color for segment in bar.parts] == colors == split.table.swatches
    assert [segment.start for segment in bar.parts] == [
        0.0,
        pytest.approx(10.0),
        pytest.approx(30.0),
        pytest.approx(90.0),
    ]
    assert bar.parts[-1].start + bar.parts[-1].width == pytest.approx(100.0)
    assert split.table.rows[-1] == ("sum", "10 s", "100.0 %")


def test_no_two_neighbors_share_a_color_however_many_there_are():
    (bar,) = time_split("Time", [TimeShare(name=str(i), seconds=1.0, share=1 / 30) for i in range(30)]).bars
    colors = [segment.color for segment in bar.parts]
    assert all(a != b for a, b in itertools.pairwise(colors))
    assert colors.count("var(--part-1)") == 1
    assert time_split("Time", []).bars == []


def test_twelve_parts_as_a_long_run_has_them_have_twelve_colors():
    (bar,) = time_split("Time", [part(str(number), 1.0 + number) for number in range(12)]).bars
    assert len({segment.color for segment in bar.parts}) == 12


def test_bars_side_by_side_share_scale_and_colors_and_the_remainder_comes_last():
    view = side_by_side(
        "Time",
        {
            "A": [part("load", 1.0), part("other", 1.0), part("train", 8.0)],
            "B": [part("train", 4.0), part("save", 1.0)],
        },
    )
    a, b = view.bars
    assert [(p.name, p.color, p.start, p.width) for p in a.parts] == [
        ("load", "var(--part-2)", 0.0, 10.0),
        ("other", "var(--part-other)", 10.0, 10.0),
        ("train", "var(--part-1)", 20.0, 80.0),
    ]
    assert [(p.color, p.width) for p in b.parts] == [("var(--part-1)", 40.0), ("var(--part-3)", 10.0)]
    assert (a.total, b.total) == ("10 s", "5.0 s")
    assert view.table.heads == ["Part", "A", "Share", "B", "Share"]
    assert view.table.rows == [
        ["load", "1.0 s", "10.0 %", "", ""],
        ["train", "8.0 s", "80.0 %", "4.0 s", "40.0 %"],
        ["save", "", "", "1.0 s", "10.0 %"],
        ["other", "1.0 s", "10.0 %", "", ""],
        ["sum", "10 s", "", "5.0 s", ""],
    ]
    assert view.table.swatches == ["var(--part-2)", "var(--part-1)", "var(--part-3)", "var(--part-other)"]


def test_bars_of_nothing_are_empty():
    assert side_by_side("Time", {}).bars == []
