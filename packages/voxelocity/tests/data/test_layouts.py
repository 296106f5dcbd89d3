from __future__ import annotations

from dataclasses import replace

import pytest

from shared.layouts import LAYOUTS, Found, found_in
from shared.lists import LISTS, FoundList, found_in_list
from voxelocity_observe.core.errors import VoxelocityError

pytest.importorskip("SimpleITK")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_data_set_is_understood(name, tmp_path):
    layout = LAYOUTS[name]
    folder = layout.make(tmp_path / "data")
    expected = Found(cases=layout.cases, channels=layout.channels, classes=layout.classes)
    assert found_in(folder, tmp_path / "lists", layout.hints) == expected


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.hints.raters])
def test_a_rater_must_be_chosen(name, tmp_path):
    layout = LAYOUTS[name]
    with pytest.raises(VoxelocityError, match="--raters"):
        found_in(layout.make(tmp_path / "data"), tmp_path / "lists", replace(layout.hints, raters=""))


@pytest.mark.filterwarnings("ignore:.*they are a test set:UserWarning")
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_another_tool_is_opened_as_it_is(name, tmp_path):
    listed = LISTS[name]
    expected = FoundList(cases=listed.cases, channels=listed.channels, classes=listed.classes, held_out=listed.held_out)
    assert found_in_list(listed.make(tmp_path)) == expected
