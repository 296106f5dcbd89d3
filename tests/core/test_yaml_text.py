import pytest

from voxelocity.core.yaml_text import parse_yaml


def bomb(num_levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, num_levels)]
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
        ("a: !!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_line(text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
