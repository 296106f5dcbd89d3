import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.region import Region

index3 = st.tuples(*[st.integers(-20, 20)] * 3)
shape3 = st.tuples(*[st.integers(1, 20)] * 3)


@given(start=index3, size=shape3, volume=shape3)
def test_the_clipped_part_lies_inside_and_makes_up_the_whole_region_with_the_padding(start, size, volume):
    region = Region(start, tuple(a + n for a, n in zip(start, size, strict=True)))
    inside = region.clip(volume)
    assert all(0 <= a <= b <= n for a, b, n in zip(inside.start, inside.stop, volume, strict=True))
    before, after = region.padding(volume)
    assert all(b >= 0 and a >= 0 for b, a in zip(before, after, strict=True))
    assert tuple(b + n + a for b, n, a in zip(before, inside.shape, after, strict=True)) == region.shape


def test_shifting_there_and_back_gives_the_same_region():
    region = Region((1, 2, 3), (4, 6, 8))
    assert region.shifted((5, -2, 1)).shifted((-5, 2, -1)) == region
    assert region.num_voxels == 3 * 4 * 5


def test_a_stop_before_the_start_is_refused():
    with pytest.raises(ValueError, match=r"stop \(0, 1, 1\) lies before start \(1, 0, 0\)"):
        Region((1, 0, 0), (0, 1, 1))
