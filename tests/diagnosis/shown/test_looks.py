from hypothesis import given
from hypothesis import strategies as st

from voxelocity.diagnosis.shown.looks import cells, look_of, name_of


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 200))
def test_cells_sum_to_the_width_and_none_is_far_off(shares, width):
    given_cells = cells(shares, width)
    whole = sum(shares)
    assert sum(given_cells) == (width if whole > 0 else 0)
    if whole > 0 and len(shares) <= width:
        assert all((count >= 1) == (share > 0) for count, share in zip(given_cells, shares, strict=True))
        worst = max(abs(c - s / whole * width) for c, s in zip(given_cells, shares, strict=True))
        assert worst <= len(shares)


def test_parts_of_steps_and_of_splits_look_alike():
    assert look_of("wait") == look_of("waiting for data")
    assert name_of("wait") == "waiting for data"
    assert look_of("optimizer") == look_of(name_of("optimizer"))


def test_every_known_part_has_its_own_letter_and_colours():
    names = ["wait", "copy", "forward", "backward", "optimizer", "validation", "saving", "epoch start", "other"]
    looks = [look_of(name) for name in names]
    for field in ("letter", "terminal", "style"):
        assert len({getattr(look, field) for look in looks}) == len(names), field


def test_a_part_that_nobody_foresaw_has_a_look():
    assert look_of("zipping").letter == "Z"
