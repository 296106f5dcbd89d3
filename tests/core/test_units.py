import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.core.units import parse_duration_s


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
