import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval

from voxelocity.core.errors import ConfigError
from voxelocity.core.region import Region
from voxelocity.data.patch import grid_regions

SIDES = st.tuples(*[st.integers(1, 16)] * 3)
OVERLAPS = st.floats(0.0, 0.95)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_grid_covers_every_voxel_and_repeats_no_box(shape, patch, overlap):
    regions = grid_regions(shape, patch, overlap)
    covered = np.zeros(shape, bool)
    for region in regions:
        assert region.shape == patch
        covered[region.clip(shape).slices] = True
    assert covered.all()
    assert len(set(regions)) == len(regions)


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_boxes_stay_inside_wherever_the_volume_is_large_enough(shape, patch, overlap):
    for region in grid_regions(shape, patch, overlap):
        before, after = region.padding(shape)
        for n, side, b, a in zip(shape, patch, before, after, strict=True):
            assert (b, a) == (((side - n) // 2, side - n - (side - n) // 2) if n < side else (0, 0))


@given(shape=SIDES, patch=SIDES, overlap=OVERLAPS)
def test_positions_are_those_of_monai(shape, patch, overlap):
    shape = tuple(max(n, side) for n, side in zip(shape, patch, strict=True))
    slices = dense_patch_slices(shape, patch, _get_scan_interval(shape, patch, 3, [overlap] * 3))
    assert [region.slices for region in grid_regions(shape, patch, overlap)] == list(slices)


def test_grid_covers_every_voxel_once_where_the_patch_divides_the_volume():
    regions = grid_regions((8, 4, 6), (4, 4, 3), 0.0)
    assert regions == (
        Region((0, 0, 0), (4, 4, 3)),
        Region((0, 0, 3), (4, 4, 6)),
        Region((4, 0, 0), (8, 4, 3)),
        Region((4, 0, 3), (8, 4, 6)),
    )


@pytest.mark.parametrize("overlap", [-0.1, 1.0, float("nan")])
def test_overlap_out_of_range_is_refused(overlap):
    with pytest.raises(ConfigError, match=r"patch\.grid: overlap .* is not valid; choose from 0 to below 1"):
        grid_regions((8, 8, 8), (4, 4, 4), overlap)


def test_volume_without_voxels_is_refused():
    with pytest.raises(ConfigError, match=r"a volume of \(8, 0, 8\) voxels cannot be covered"):
        grid_regions((8, 0, 8), (4, 4, 4), 0.5)
