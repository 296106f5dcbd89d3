import numpy as np
import pytest

from voxelocity.core.slabs import slabs


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7, 5, 3), (1, 4, 6, 5), (2, 3, 4, 5), (1, 1, 1), (0, 3, 2)])
def test_pieces_of_both_arrays_cover_every_value_once_and_agree(shape, order):
    source = np.asarray(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), order=order)
    target = np.zeros(shape, np.float64)
    for values, written in slabs(source, target, max_values=10):
        assert values.shape == written.shape
        written += values + 1
    np.testing.assert_array_equal(target, source.astype(np.float64) + 1)


def test_pieces_are_small_and_follow_memory():
    source = np.zeros((50, 40, 30), np.float32).transpose(2, 1, 0)  # the last axis is the slowest
    pieces = [piece for (piece,) in slabs(source, max_values=3000)]
    assert max(piece.size for piece in pieces) <= 3000
    assert pieces[0].shape == (2, 30, 40)


def test_a_plane_that_is_too_large_is_cut_too():
    pieces = [piece.size for (piece,) in slabs(np.zeros((2, 100, 100)), max_values=250)]
    assert max(pieces) <= 250
    assert sum(pieces) == 20_000
