import math
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from voxelocity.core.config import Auto
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import (
    bytes_text,
    count_text,
    dice_text,
    dotted,
    duration_text,
    factor_text,
    figure_text,
    joined,
    mm_text,
    parse_bytes,
    parse_duration_s,
    rate_text,
    read_printed,
    share_text,
    signed_text,
    value_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.9, "0.90 s"),
        (0.999, "1.0 s"),
        (4.25, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (302.1, "5 min 2 s"),
        (3599.7, "1 h"),
        (3780.0, "1 h 3 min"),
        (187_200.0, "2 d 4 h"),
        (-302.0, "-5 min 2 s"),
        (None, "n/a"),
        (math.nan, "n/a"),
    ],
)
def test_a_duration_reads_in_its_two_largest_units(seconds, text):
    assert duration_text(seconds) == text


@given(st.floats(min_value=1e-6, max_value=1e8))
def test_a_duration_is_within_five_per_cent_of_the_truth_and_shows_no_full_smaller_unit(seconds):
    parts = duration_text(seconds).split()
    amounts = dict(zip(parts[1::2], map(float, parts[::2]), strict=True))
    assert all(amounts.get(unit, 0) < full for unit, full in (("ms", 1000), ("s", 60), ("min", 60), ("h", 24)))
    size = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    shown = sum(amount * size[unit] for unit, amount in amounts.items())
    assert seconds < 1.0 or shown == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (1023.7, "1.00 KiB"), (14_680_064, "14.0 MiB"), (2**37, "128 GiB"), (None, "n/a")],
)
def test_bytes_read_in_binary_units(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_scores_and_shares_have_a_fixed_number_of_digits():
    assert dice_text(0.8809) == "0.881"
    assert share_text(0.019) == "1.9 %"
    assert mm_text(3.416) == "3.42"
    assert [rate_text(r) for r in (0.52, 4.0, 48.32, 1250.4)] == ["0.520", "4.00", "48.3", "1,250"]
    assert [f(None) for f in (dice_text, share_text, mm_text, rate_text, signed_text, factor_text)] == ["n/a"] * 6
    assert [f(math.nan) for f in (dice_text, share_text, mm_text, rate_text, signed_text, factor_text)] == ["n/a"] * 6


def test_a_difference_carries_its_sign_and_nothing_carries_both():
    assert [signed_text(d) for d in (0.0042, -0.0042, 0.0001, -0.0001)] == ["+0.004", "-0.004", "±0.000", "±0.000"]


def test_a_factor_below_one_keeps_two_digits():
    assert [factor_text(f) for f in (0.8, 1.0, 3.24, 12.4)] == ["0.80×", "1.0×", "3.2×", "12×"]
    assert [figure_text(f) for f in (None, math.nan, 0.5, 70.0, 1234.5)] == ["n/a", "n/a", "0.5", "70", "1,234"]


def test_counts_agree_with_their_noun():
    assert [count_text(n, "case") for n in (0, 1, 12_345)] == ["0 cases", "1 case", "12,345 cases"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("limit_bytes", 1024, "1.00 KiB"),
        ("train.time_budget_s", 600.0, "10 min"),
        ("images_per_s", 30.0, "30"),
        ("class_shares.liver", 0.25, "25.0 %"),
        ("patch.shape_voxel", [40, 56, 40], "40 × 56 × 40"),
        ("network.strides", [[2, 2, 1], [2, 2, 2]], "2 × 2 × 1, 2 × 2 × 2"),
        ("augment.scale_range", [0.85, 1.18], "0.85, 1.18"),
        ("spacing_mm", "keep", "keep"),
        ("names", ["a", "b"], "a, b"),
        ("seed", 1_234_567, "1234567"),
        ("seed", 2026, "2026"),
        ("voxels", 1_234_567, "1,234,567"),
        ("on", True, "yes"),
        ("empty", [], "none"),
        ("nothing", None, "none"),
        ("rate", 0.002, "0.002"),
    ],
)
def test_a_plain_value_is_written_by_the_unit_in_its_key(key, value, text):
    assert value_text(value, key) == text


def test_nested_settings_become_dotted_keys_in_order():
    nested = {"b": {"y": 1, "x": [1, 2]}, "a": [{"mean": 3.0}, {"mean": 4.0}], "empty": {}}
    assert dotted(nested) == {"b.y": 1, "b.x": [1, 2], "a.0.mean": 3.0, "a.1.mean": 4.0}


def test_empty_parts_leave_no_separator():
    assert joined(["a", "", "b"]) == "a, b"


Positive = Annotated[int, Field(gt=0)]
Triple = tuple[Positive, Positive, Positive]


@pytest.mark.parametrize(
    ("printed", "annotation", "key", "value"),
    [
        ("40 × 40 × 48", Triple, "shape_voxel", [40, 40, 48]),
        ("0.5, 0, 0", tuple[float, float, float], "flip_probability", [0.5, 0, 0]),
        ("8, 32, 64", tuple[int, ...], "widths", [8, 32, 64]),
        (0, tuple[int, ...], "mirror_axes", [0]),
        ("none", tuple[int, ...], "mirror_axes", []),
        ("2 × 2 × 2, 1 × 2 × 2", tuple[Triple, ...], "strides", [[2, 2, 2], [1, 2, 2]]),
        ("left eye, right eye, L, R", tuple[tuple[str, str], ...], "pairs", [["left eye", "right eye"], ["L", "R"]]),
        ("33.0 %", Annotated[float, Field(le=1)], "foreground_share", 0.33),
        ("4,000", int, "steps", 4000),
        ("10.5 GiB", int | Auto, "max_bytes", 10.5 * 2**30),
        ("5 min 2 s", float, "time_budget_s", 302.0),
        ("0 s", float, "time_budget_s", 0.0),
        ("auto", Triple | Auto, "shape_voxel", "auto"),
        ("memory", Literal["memory", "disk"], "tier", "memory"),
        ("measured", Literal["auto", "measured"] | tuple[float, ...], "balance", "measured"),
        ("0.6, 0.4", Literal["auto", "measured"] | tuple[float, ...], "balance", [0.6, 0.4]),
        ("0, boxes.max:x", tuple[str, ...], "names", ["0", "boxes.max:x"]),
        ("33 %", str, "folder", "33 %"),
        ("four", int, "steps", "four"),
    ],
)  # fmt: skip
def test_what_was_printed_is_read_back(printed, annotation, key, value):
    assert read_printed(printed, annotation, key) == value


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("1h 30min", 5400), ("1d", 86400)]
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "five", "5 parsecs", "-3m", "m", "1h30", "10 20"])
def test_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match="is not a duration; write it like 90s, 5m or 1h30m"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["5", "0.5", "300"])
def test_a_number_without_a_unit_is_asked_for_one(text):
    with pytest.raises(ConfigError, match=rf"'{text}' has no unit; write {text}s for seconds or {text}m for minutes"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("8GB", 8 * 10**9), ("512MiB", 512 * 2**20), ("1.5 GB", 1_500_000_000), ("2tib", 2 * 2**40), ("1kB", 1000)],
)
def test_amounts_of_memory_are_read(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["8", "GB", "-1GB", "0GB", "8 apples", "8G", ""])
def test_an_amount_without_unit_or_sense_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="8GB"):
        parse_bytes(text)
