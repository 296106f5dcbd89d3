from __future__ import annotations

import io

import pytest

from voxelocity_observe.core.terminal_text import as_ascii, printable, replace_unencodable, wrapped


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


def test_signs_are_written_as_they_are_typed():
    assert as_ascii("0.87× ± 1 µm… „é") == "0.87x +- 1 um... ??"


@pytest.mark.parametrize(("encoding", "written"), [("ascii", b"2x, ?"), ("latin-1", b"2\xd7, \xe9"), ("utf-8", None)])
def test_a_stream_writes_what_its_encoding_has_and_replaces_the_rest(encoding, written):
    kept = io.BytesIO()
    stream = io.TextIOWrapper(kept, encoding=encoding)
    replace_unencodable(stream)
    stream.write("2×, é")
    stream.flush()
    assert kept.getvalue() == (written or "2×, é".encode())


def test_a_stream_that_cannot_be_changed_is_left_as_it_is():
    stream = io.StringIO()
    replace_unencodable(stream)
    stream.write("2×")
    assert stream.getvalue() == "2×"
