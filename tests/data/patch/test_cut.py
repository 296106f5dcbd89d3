import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxelocity.core.region import Region
from voxelocity.data.patch import cut

POINTS = st.tuples(*[st.integers(-12, 12)] * 3)
SIDES = st.tuples(*[st.integers(1, 9)] * 3)


@settings(deadline=None)
@given(
    shape=SIDES,
    start=POINTS,
    side=SIDES,
    num_channels=st.integers(1, 3),
    axes=st.permutations(range(4)),
    dtypes=st.sampled_from([(np.int16, np.float32), (np.float32, np.float32), (np.float16, np.float32)]),
)
def test_cut_equals_indexing_a_padded_volume(shape, start, side, num_channels, axes, dtypes):
    rng = np.random.default_rng(0)
    stored = rng.integers(-500, 500, [(num_channels, *shape)[axis] for axis in axes]).astype(dtypes[0])
    array = stored.transpose(np.argsort(axes))
    padded = np.pad(array, [(0, 0), *[(25, 25)] * 3], constant_values=7)
    region = Region(start, tuple(a + n for a, n in zip(start, side, strict=True)))
    wanted = padded[:, *region.shifted((25, 25, 25)).slices]
    out = np.full((num_channels, *side), 99, dtypes[1])
    cut(array, region, out, 7)
    np.testing.assert_array_equal(out, wanted.astype(dtypes[1]))


def test_cut_writes_into_a_row_of_a_batch_and_nowhere_else():
    batch = np.full((3, 1, 4, 4, 4), -1.0, np.float32)
    cut(np.ones((1, 9, 9, 9), np.int16), Region((1, 1, 1), (5, 5, 5)), batch[1], 0)
    assert (batch[1] == 1).all()
    assert (batch[[0, 2]] == -1).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_cut_allocates_nothing_of_the_patch_size(order):
    array = np.ones((1, 64, 64, 64), np.int16, order=order)
    out = np.empty((1, 48, 48, 48), np.float32)
    region = Region((3, 3, 3), (51, 51, 51))
    cut(array, region, out, 0)
    tracemalloc.start()
    cut(array, region, out, 0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000 < out.nbytes


def test_cut_refuses_to_put_fractions_into_integers():
    with pytest.raises(TypeError, match="same_kind"):
        cut(np.ones((1, 4, 4, 4), np.float32), Region.whole((4, 4, 4)), np.empty((1, 4, 4, 4), np.uint8), 0)
