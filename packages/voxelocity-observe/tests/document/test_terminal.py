import io

import pytest
from rich.console import Console

from voxelocity_observe.document import TableView
from voxelocity_observe.document.blocks import Table


@pytest.mark.parametrize("width", [60, 100])
def test_a_table_of_a_page_stands_in_a_terminal_with_its_caption(width):
    rows = [("1", "18.2", "[b]"), ("2", "9", "")]
    heads = ("Round", "images/s", "[why]")
    table = Table(caption="By round [x]", heads=heads, rows=rows, text_columns=frozenset({2}))
    file = io.StringIO()
    Console(file=file, width=width).print(TableView(table))
    lines = file.getvalue().splitlines()
    assert lines[0].rstrip() == "By round [x]"
    assert lines[1].split() == ["Round", "images/s", "[why]"]
    assert lines[2].split() == ["1", "18.2", "[b]"]
    assert lines[3].index("9") == lines[2].index("18.2") + 3, "numbers end below each other"


@pytest.mark.parametrize("heads", [("worst cases", "Dice"), ("worst cases", "Dice", "HD95 mm")])
def test_a_table_that_is_too_wide_keeps_the_head_of_its_rows(heads):
    file = io.StringIO()
    rows = [("a_case_with_a_name_that_is_longer", "0.5", "1.0")[: len(heads)]] * 2
    Console(file=file, width=30).print(TableView(Table(caption="c", heads=heads, rows=rows)))
    text = file.getvalue()
    assert all(head in text for head in heads)
    assert text.count("worst cases") == 1
