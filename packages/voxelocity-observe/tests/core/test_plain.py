from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from voxelocity_observe.core.plain import (
    excerpt,
    parse_yaml,
    plain_data,
    shortened,
    table_cell,
    text_of_cell,
    yaml_text,
)


@dataclass
class Scan:
    path: Path
    spacing_mm: tuple[float, ...]


def test_records_paths_and_numbers_of_numpy_become_json():
    values = {1: Scan(Path("a/b.nii"), (0.5, 1.0)), "n": np.int64(3), "share": np.float32(0.5), "on": True, "no": None}
    plain = plain_data(values, where="a test")
    assert plain == {
        "1": {"path": "a/b.nii", "spacing_mm": [0.5, 1.0]}, "n": 3, "share": 0.5, "on": True, "no": None,
    }  # fmt: skip
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_number_that_does_not_exist_is_none(number):
    assert plain_data([number, 1.0], where="a test") == [None, 1.0]


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), Scan])
def test_what_is_no_plain_data_is_named(value):
    with pytest.raises(TypeError, match=r"^event 'x' holds a \w+, which is not plain data; write numbers$"):
        plain_data({"inner": [value]}, where="event 'x'")


def bomb(num_levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, num_levels)]
    return "\n".join(lines)


def test_what_is_written_is_read_again_in_its_order():
    values = {"name": "Größe: 3 µm", "b": [1, 2.5, None], "a": {"no": False, "long": "word " * 60}}
    text = yaml_text(values)
    assert "Größe" in text
    assert list(parse_yaml(text).items()) == list(values.items())


def merge_bomb(levels):
    """Keys that are merged while a mapping is built, ten times on each level."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


def test_plain_values_and_aliases_are_read():
    assert parse_yaml("a: &x [1, 2.5, no]\nb: *x") == {"a": [1, 2.5, False], "b": [1, 2.5, False]}
    assert parse_yaml("") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "expected"),
        ("2001-99-99", "month must be in 1..12"),
        ("9" * 5000, "4300 digits"),
        ("[" * 200_000, "nested more than 50 deep"),
        ("{a: " * 3_000, "nested more than 50 deep"),
        (bomb(9), "aliases stand for more than 1,000,000 values"),
        (merge_bomb(12), "aliases stand for more than 1,000,000 values"),
        ("a: &a [1, *a]", r"\*a stands for what it is in itself"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_line(text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text", ["=cmd|'/C calc'!A0", "+SUM(1)", "-2+3", "@x", "\tx", "'=x", "''@", "plain", "", "'quoted'", "a=b", "é-1"]
)
def test_no_cell_is_a_formula_and_each_is_read_as_it_was(text):
    cell = table_cell(text)
    assert not str(cell).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert text_of_cell(cell) == text


@pytest.mark.parametrize("value", [-0.5, 3, None, "-0.5", "+3e-4", "-7"])
def test_numbers_in_cells_stay_numbers(value):
    assert table_cell(value) == value


@pytest.mark.parametrize("value", ["x" * 10**6, b"x" * 10**6, ["x" * 10**6] * 100, {"x" * 10**6: "x"}, 10**4000])
def test_what_a_message_quotes_is_short_whatever_it_is(value):
    assert len(shortened(value)) < 700
    assert len(excerpt(str(value))) <= 400
    assert excerpt(" a\n b ") == "a b"
