"""Windows and tiles of a volume: what a window still changes is held, and nothing else for long."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.patch import grid_regions
from voxelocity.infer import tiling as module
from voxelocity.infer.tiling import tiling_of

pytestmark = pytest.mark.usefixtures("no_volume_is_small")


@given(
    window=st.tuples(*[st.integers(1, 6)] * 3),
    more=st.tuples(*[st.integers(0, 12)] * 3),
    overlap=st.sampled_from([0.0, 0.3, 0.5, 0.8]),
    spread=st.sampled_from(["monai", "even"]),
)
def test_every_tile_is_complete_when_it_says_so_and_the_peak_is_what_is_held(window, more, overlap, spread):
    shape = tuple(side + n for side, n in zip(window, more, strict=True))
    found = tiling_of(shape, window, overlap, spread=spread)
    assert sorted(found.windows, key=str) == sorted(grid_regions(shape, window, overlap, spread=spread), key=str)
    covered = np.zeros(shape, int)
    for tile in found.tiles:
        covered[tile.box.slices] += 1
    assert (covered == 1).all()
    starts, stops = (np.array([getattr(tile.box, name) for tile in found.tiles]) for name in ("start", "stop"))
    last = np.zeros(len(found.tiles), int)
    # What the sums of the tiles take after each window, as `Stitched` makes and frees them.
    place = {tile: number for number, tile in enumerate(found.tiles)}
    is_held, sizes = np.zeros(len(found.tiles), bool), np.array([tile.held.num_voxels for tile in found.tiles])
    complete_after, most = np.array([tile.complete_after for tile in found.tiles]), 0
    for number, window in enumerate(found.windows):
        is_touched = ((starts < window.stop) & (stops > window.start)).all(axis=1)
        last[is_touched] = number
        is_reached = np.zeros(len(found.tiles), bool)
        is_reached[[place[tile] for tile in found.reached_by(number)]] = True
        assert not (is_touched & ~is_reached).any()
        is_held |= is_reached
        most = max(most, sizes[is_held].sum())
        is_held &= complete_after > number + 1
    assert (complete_after > last).all()
    assert not is_held.any()
    assert most <= found.peak_voxels


@given(shape=st.tuples(*[st.integers(4, 16)] * 3), overlap=st.sampled_from([0.0, 0.5, 0.8]))
def test_the_tiles_before_a_tile_come_before_it(shape, overlap):
    found = tiling_of(shape, (4, 4, 4), overlap)
    for tile, next_tile in itertools.pairwise(found.tiles):
        assert tile.complete_after <= next_tile.complete_after
    for number, tile in enumerate(found.tiles):
        for axis in range(3):
            if tile.held.start[axis] == tile.box.start[axis]:
                continue
            start = list(tile.box.start)
            start[axis] -= 1
            before = [tile for tile in found.tiles if all(a <= p < b for a, p, b in
                      zip(tile.box.start, start, tile.box.stop, strict=True))]  # fmt: skip
            assert found.tiles.index(before[0]) < number


def test_a_long_volume_is_cut_along_its_length_and_a_large_sum_along_two_axes(monkeypatch):
    assert tiling_of((12, 200, 12), (8, 8, 8), 0.5).axes == (1,)
    # 104 classes of a CT of 512 x 512 x 600 at 1.5 mm: a window's depth would be 129 of 400 planes.
    monkeypatch.setattr(module, "_LARGE_BYTES", 1 << 30)
    assert len(tiling_of((273, 273, 400), (128, 128, 128), 0.5, num_outputs=14).axes) == 1
    large = tiling_of((273, 273, 400), (128, 128, 128), 0.5, num_outputs=104)
    assert len(large.axes) == 2
    assert large.peak_voxels < 0.83 * 129 * 273 * 273


def test_a_volume_of_one_window_is_one_tile():
    found = tiling_of((96, 96, 96), (96, 96, 96), 0.5)
    assert [tile.box.shape for tile in found.tiles] == [(96, 96, 96)]
    assert found.peak_voxels == 96**3


def test_in_order_windows_move_along_z_first_then_y_then_x():
    shape, window = (20, 14, 40), (8, 8, 8)
    found = tiling_of(shape, window, 0.5, spread="even", in_order=True)
    assert found.axes == (0,)
    assert tiling_of(shape, window, 0.5, spread="even").axes[0] == 2
    assert [box.start for box in found.windows] == sorted(box.start for box in found.windows)
