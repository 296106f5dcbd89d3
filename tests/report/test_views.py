import itertools

import pytest

from voxelocity.core.time_parts import TimeShare
from voxelocity.report.views import bar_parts, breakable, in_words, joined, key_value_table, side_by_side, unbroken


def test_numbers_are_tied_to_their_units_and_nothing_else():
    assert unbroken("after 5 min 2 s; 1.9 % of 42 cases in 3 days, 4.8 times") == (
        "after 5\u00a0min\u00a02\u00a0s; 1.9\u00a0% of 42 cases in 3 days, 4.8\u00a0times"
    )


def test_names_and_paths_may_break_between_their_parts_and_figures_may_not():
    assert breakable("/data/a_b.py:12") == "/<wbr>data/<wbr>a_<wbr>b.<wbr>py:12"
    assert breakable("0.48 s of 1.5") == "0.48 s of 1.5"
    assert breakable("<i>.x") == "&lt;i&gt;.x"


def test_the_largest_part_leads_and_the_remainder_is_grey():
    names = ["plan", "cache", "training", "other"]
    shares = [TimeShare(name=n, seconds=s, share=s) for n, s in zip(names, (0.1, 0.2, 0.6, 0.1), strict=True)]
    parts = bar_parts(shares)
    assert [part.style for part in parts] == ["part-2", "part-3", "part-1", "part-other"]
    assert [part.start for part in parts] == [0.0, pytest.approx(10.0), pytest.approx(30.0), pytest.approx(90.0)]
    assert parts[-1].start + parts[-1].width == pytest.approx(100.0)


def test_no_two_neighbors_share_a_color_however_many_there_are():
    shares = [TimeShare(name=str(i), seconds=1.0, share=1 / 30) for i in range(30)]
    styles = [part.style for part in bar_parts(shares)]
    assert all(a != b for a, b in itertools.pairwise(styles))
    assert styles.count("part-1") == 1
    assert bar_parts([]) == []


def test_keys_read_as_words():
    assert [in_words(key) for key in ("shape_voxel", "file_bytes", "prepare_s", "intensity.0.mean")] == [
        "shape (voxel)",
        "file size",
        "prepare time",
        "intensity · 0 · mean",
    ]


def test_settings_become_rows_and_none_become_no_rows():
    table = key_value_table("Settings", {"a": {"b_bytes": 2048}})
    assert table.rows == [("a.b_bytes", "2.00 KiB")]
    assert key_value_table("Settings", {}).rows == []


def test_empty_parts_leave_no_separator():
    assert joined(["a", "", "b"]) == "a, b"


def part(name, seconds):
    return TimeShare(name=name, seconds=seconds, share=seconds / 10.0)


def test_bars_side_by_side_share_scale_and_colors_and_the_remainder_comes_last():
    view = side_by_side(
        "Time",
        {
            "A": [part("load", 1.0), part("other", 1.0), part("train", 8.0)],
            "B": [part("train", 4.0), part("save", 1.0)],
        },
    )
    a, b = view.bars
    assert [(p.name, p.style, p.start, p.width) for p in a.parts] == [
        ("load", "part-2", 0.0, 10.0),
        ("other", "part-other", 10.0, 10.0),
        ("train", "part-1", 20.0, 80.0),
    ]
    assert [(p.style, p.start, p.width) for p in b.parts] == [("part-1", 0.0, 40.0), ("part-3", 40.0, 10.0)]
    assert (a.total, b.total) == ("10 s", "5.0 s")
    assert view.table.heads == ["Part", "A", "Share", "B", "Share"]
    assert view.table.rows == [
        ["load", "1.0 s", "10.0 %", "", ""],
        ["train", "8.0 s", "80.0 %", "4.0 s", "40.0 %"],
        ["save", "", "", "1.0 s", "10.0 %"],
        ["other", "1.0 s", "10.0 %", "", ""],
        ["sum", "10 s", "", "5.0 s", ""],
    ]
    assert view.styles == ("part-2", "part-1", "part-3", "part-other")


def test_bars_of_nothing_are_empty():
    assert side_by_side("Time", {}).bars == ()
