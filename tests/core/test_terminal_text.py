from __future__ import annotations

import pytest

from voxelocity.core.terminal_text import printable, wrapped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3.2\N{NO-BREAK SPACE}s × 2", "3.2\N{NO-BREAK SPACE}s × 2"),
        ("a\tb\r\nc", "a b  c"),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b", "a?b"),
    ],
)
def test_what_a_terminal_would_take_for_an_order_is_not_printed(text, shown):
    assert printable(text) == shown


def test_lines_keep_within_their_columns_with_what_stands_before_them():
    assert wrapped("one two three", 9, first="- ", rest="  ") == ["- one two", "  three"]


def test_a_path_is_not_broken_and_stands_alone():
    assert wrapped("see /a-long/path-name/x now", 8) == ["see", "/a-long/path-name/x", "now"]
