from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval

from voxelocity.core.region import Region
from voxelocity.data.patch import PatchConfig, axis_starts, choose_region, grid_regions
from voxelocity_observe.core.errors import ConfigError

SIDES = st.tuples(*[st.integers(1, 20)] * 3)


def config(shape=(4, 4, 4), share=0.5):
    return PatchConfig(shape_voxel=shape, foreground_share=share)


def flat(shape, *voxels):
    return np.array([np.ravel_multi_index(voxel, shape) for voxel in voxels], np.int32)


@given(shape=SIDES, patch=SIDES, seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.5, 1.0]), data=st.data())
def test_patch_stays_inside_a_larger_volume_and_stands_centered_on_a_smaller_one(shape, patch, seed, share, data):
    voxel = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    region = choose_region(shape, {1: flat(shape, voxel)}, config(patch, share), np.random.default_rng(seed))
    assert region.shape == patch
    before, after = region.padding(shape)
    for n, side, b, a in zip(shape, patch, before, after, strict=True):
        if n >= side:
            assert (b, a) == (0, 0)
        else:
            assert (b + a, b) == (side - n, (side - n) // 2)
    if share == 1.0:
        assert all(start <= v < stop for start, v, stop in zip(region.start, voxel, region.stop, strict=True))


def test_patch_is_centered_on_the_foreground_voxel_where_there_is_room():
    region = choose_region(
        (20, 20, 20), {2: flat((20, 20, 20), (9, 10, 11))}, config((4, 5, 6), 1.0), np.random.default_rng(0)
    )
    assert region == Region((7, 8, 8), (11, 13, 14))


def test_rare_class_is_drawn_as_often_as_a_common_one():
    shape = (30, 30, 30)
    common = np.arange(27_000, dtype=np.int32)
    rare = flat(shape, (3, 4, 5))
    rng = np.random.default_rng(1)
    foreground = {0: common, 1: common[::3], 4: rare, 5: np.array([], np.int32)}
    starts = Counter(choose_region(shape, foreground, config((1, 1, 1), 1.0), rng).start for _ in range(2000))
    assert starts[(3, 4, 5)] == pytest.approx(1000, abs=100)


def test_share_of_foreground_patches_is_the_configured_one():
    shape = (50, 50, 50)
    rng = np.random.default_rng(2)
    foreground = {1: flat(shape, (7, 7, 7))}
    hits = sum(choose_region(shape, foreground, config((1, 1, 1), 0.3), rng).start == (7, 7, 7) for _ in range(2000))
    assert hits == pytest.approx(600, abs=80)


@pytest.mark.parametrize("foreground", [{}, {0: np.arange(5, dtype=np.int32)}, {1: np.array([], np.int32)}])
def test_case_without_foreground_gives_every_position_alike(foreground):
    rng = np.random.default_rng(3)
    starts = Counter(choose_region((5, 4, 4), foreground, config((4, 4, 4), 1.0), rng).start for _ in range(1000))
    assert set(starts) == {(0, 0, 0), (1, 0, 0)}
    assert starts[(0, 0, 0)] == pytest.approx(500, abs=80)


OVERLAPS = st.floats(0.0, 0.95)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_grid_covers_every_voxel_repeats_no_box_and_stays_inside_wherever_the_volume_is_large_enough(
    shape, patch, overlap
):
    regions = grid_regions(shape, patch, overlap)
    covered = np.zeros(shape, bool)
    for region in regions:
        assert region.shape == patch
        covered[region.clip(shape).slices] = True
        for n, side, *padding in zip(shape, patch, *region.padding(shape), strict=True):
            assert padding == ([(side - n) // 2, side - n - (side - n) // 2] if n < side else [0, 0])
    assert covered.all()
    assert len(set(regions)) == len(regions)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_positions_are_those_of_monai(shape, patch, overlap):
    shape = tuple(max(n, side) for n, side in zip(shape, patch, strict=True))
    slices = dense_patch_slices(shape, patch, _get_scan_interval(shape, patch, 3, [overlap] * 3))
    assert [region.slices for region in grid_regions(shape, patch, overlap)] == list(slices)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_evenly_spread_boxes_cover_every_voxel_and_none_is_further_from_the_next_than_asked(shape, patch, overlap):
    covered = np.zeros(shape, bool)
    for region in grid_regions(shape, patch, overlap, spread="even"):
        assert region.shape == patch
        covered[region.clip(shape).slices] = True
    assert covered.all()
    for n, side in zip(shape, patch, strict=True):
        starts = axis_starts(n, side, overlap, spread="even")
        assert all(0 < b - a <= side * (1 - overlap) + 1 for a, b in pairwise(starts))
        assert starts[-1] == max(n - side, starts[0])


@pytest.mark.parametrize(
    ("n", "side", "starts"), [(110, 64, [0, 23, 46]), (64, 64, [0]), (65, 64, [0, 1]), (97, 64, [0, 16, 33])]
)
def test_evenly_spread_boxes_are_those_of_nnunet(n, side, starts):
    # The first is the example in nnU-Net's `compute_steps_for_sliding_window`; 16.5 is rounded to the even number.
    assert axis_starts(n, side, 0.5, spread="even") == starts


@pytest.mark.parametrize("overlap", [-0.1, 1.0, float("nan")])
def test_overlap_out_of_range_is_refused(overlap):
    with pytest.raises(ConfigError, match=r"patch\.grid: overlap .* is not valid; choose from 0 to below 1"):
        grid_regions((8, 8, 8), (4, 4, 4), overlap)


def test_volume_without_voxels_is_refused():
    with pytest.raises(ConfigError, match=r"a volume of \(8, 0, 8\) voxels cannot be covered"):
        grid_regions((8, 0, 8), (4, 4, 4), 0.5)
