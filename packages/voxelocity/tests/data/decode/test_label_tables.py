"""Tables of labels for other programs, which `init` reads again."""

from __future__ import annotations

import itertools

import pytest

from voxelocity.data.decode.label_tables import class_color, slicer_table, snap_table
from voxelocity.data.pipeline.class_names import find_class_names

LABELS = {0: "background", 1: "liver", 7: 'left  "lung"', 300: "rib 5"}


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("labels.label", snap_table, {1: "liver", 7: "left 'lung'", 300: "rib 5"}),
        ("labels.ctbl", slicer_table, {1: "liver", 7: 'left_"lung"', 300: "rib_5"}),
    ],
)
def test_names_come_back_from_the_table(tmp_path, name, write, expected):
    (tmp_path / name).write_bytes(write(LABELS))
    assert find_class_names(tmp_path, [name], [], [1, 7, 300]) == (expected, name)


def test_itk_snap_and_slicer_read_the_lines():
    snap = snap_table(LABELS).decode().splitlines()
    assert snap[-4].split() == ["0", "0", "0", "0", "0", "0", "0", '"background"']
    red, green, blue = map(str, class_color(1))
    assert snap[-3].split() == ["1", red, green, blue, "1", "1", "1", '"liver"']
    assert slicer_table(LABELS).decode().splitlines()[2] == f"1 liver {red} {green} {blue} 255"


def test_neighbors_have_different_colors():
    colors = [class_color(value) for value in range(1, 400)]
    assert len({*colors}) > 390
    assert all(sum(abs(a - b) for a, b in zip(*pair, strict=True)) > 60 for pair in itertools.pairwise(colors))
