"""What comes from names of files and classes reaches the terminal as text, whichever way it is printed."""

import io

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from voxelocity_observe.core.console import PlainConsole

NAME = "a[red]b[/x] :smile: \x1b]0;pwned\x9c\x1b[31mred"
SHOWN = "a[red]b[/x] :smile: ?]0;pwned??[31mred"


def table(name):
    made = Table()
    made.add_column(name)
    made.add_row(name)
    return made


@pytest.mark.parametrize("kind", [str, Text, table, Panel, lambda name: Panel("inside", title=Text(name))])
def test_names_are_shown_letter_by_letter(kind):
    file = io.StringIO()
    PlainConsole(file=file, width=100).print(kind(NAME))
    assert SHOWN in file.getvalue()
    assert "\x1b" not in file.getvalue()
    assert "\x9c" not in file.getvalue()


def test_styles_and_line_breaks_stay():
    file = io.StringIO()
    console = PlainConsole(file=file, width=40, force_terminal=True, color_system="standard", no_color=False)
    console.print(f"one {NAME}\ntwo", style="yellow", soft_wrap=True)
    assert file.getvalue() == f"\x1b[33mone {SHOWN}\x1b[0m\n\x1b[33mtwo\x1b[0m\n"


@pytest.mark.parametrize("width", [20, 80])
def test_the_title_of_a_rule_is_whole_at_any_width(width):
    file = io.StringIO()
    PlainConsole(file=file, width=width).rule("a title of thirty-six letters or so")
    text = " ".join(file.getvalue().replace("\u2500", " ").split())
    assert text == "a title of thirty-six letters or so"
    assert "\u2500" in file.getvalue()
