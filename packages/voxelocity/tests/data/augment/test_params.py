"""Which boxes of volumes the samples of a batch need: at once, and one by one as the reference."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.examples import examples
from voxelocity.core.batch import Draw
from voxelocity.core.region import Region
from voxelocity.core.volume import Scaling
from voxelocity.data.augment import AugmentConfig, Source, needed_box, needed_boxes, sample, triton_tables
from voxelocity.data.augment.params import AugmentParams, blur_weights, coefficient_cube, low_positions, scalings
from voxelocity_observe.core.errors import DatasetError

NONE = AugmentConfig(enabled=False)
WARPS = AugmentConfig(affine_probability=0.6, rotation_share=1.0, rotation_degrees=(40.0, 20.0, 10.0))
ELASTIC = AugmentConfig(affine_probability=0.3, elastic_probability=0.5, elastic_spacing_voxel=4.0)


@given(seed=st.integers(0, 10_000), config=st.sampled_from([NONE, WARPS, ELASTIC]), data=st.data())
@settings(max_examples=examples(60))
def test_boxes_of_a_batch_are_those_of_its_samples(seed, config, data):
    patch = data.draw(st.tuples(*[st.integers(3, 14)] * 3))
    draws = [Draw(case_id="a", case=case, epoch=seed) for case in range(5)]
    params = sample(draws, seed=seed, num_channels=1, patch_shape=patch, config=config)
    starts = [data.draw(st.tuples(*[st.integers(-20, 30)] * 3)) for _ in draws]
    regions = [Region(start, tuple(a + b for a, b in zip(start, patch, strict=True))) for start in starts]
    shapes = [data.draw(st.tuples(*[st.integers(1, 30)] * 3)) for _ in draws]
    found = needed_boxes(params, regions, shapes)
    assert found == [
        needed_box(params, row, region, shape) for row, (region, shape) in enumerate(zip(regions, shapes, strict=True))
    ]
    assert all(type(place) is int for box in found for place in (*box.start, *box.stop))


@pytest.mark.parametrize("given_scaling", [(), (Scaling(0.5, -3.0), Scaling(2.0, 1.0))])
def test_scalings_of_a_batch_are_those_of_its_samples(given_scaling):
    image, label = np.zeros((2, 1, 1, 1), np.int16), np.zeros((1, 1, 1), np.uint8)
    sources = [
        Source(image=image, label=label, start=(0, 0, 0), scaling=some) for some in (given_scaling, (), given_scaling)
    ]
    pairs = [(some.slope, some.inter) for some in given_scaling or [Scaling()] * 2]
    assert np.array_equal(scalings(sources, 2), np.stack([pairs, [(1, 0)] * 2, pairs]))


@given(
    sigmas=st.lists(st.tuples(*[st.sampled_from([0.0, 0.1, 0.5, 0.93, 1.7, 6.0])] * 3), min_size=1, max_size=5),
    zooms=st.lists(st.floats(0.125, 1.0, width=32), min_size=1, max_size=5),
    shape=st.tuples(*[st.integers(1, 40)] * 3),
)
@settings(max_examples=examples(80))
def test_tables_of_all_channels_are_those_of_each(sigmas, zooms, shape):
    params = AugmentParams.identity(max(len(sigmas), len(zooms)), 1)
    params.blur_sigma_voxel[: len(sigmas), 0] = sigmas
    params.low_resolution[: len(zooms), 0] = zooms
    is_blurred = triton_tables.lists(params).chosen[triton_tables.ChangeKernel.BLUR]
    assume(is_blurred.any())
    taps, radii = triton_tables.taps(params, is_blurred, shape)
    blurred = [three for three in params.blur_sigma_voxel[:, 0].tolist() if any(three)]
    assert len(taps) == len(radii) == len(blurred)
    for found, found_radii, three in zip(taps, radii, blurred, strict=True):
        for weights, radius, sigma, side in zip(found, found_radii, three, shape, strict=True):
            wanted = blur_weights(sigma, side)
            assert radius == wanted.size // 2
            assert np.array_equal(weights[: wanted.size], wanted)
            assert not weights[wanted.size :].any()
    coarse = triton_tables.coarse_tables(params, shape)
    assert all(table.flags.c_contiguous for table in (taps, radii, *coarse)), "kernels read C order"
    of_each = [
        [np.concatenate(parts) for parts in zip(*(low_positions(side, zoom) for side in shape), strict=True)]
        for zoom in params.low_resolution[:, 0].tolist()
        if zoom != 1.0
    ]
    for number, found in enumerate(coarse):
        assert len(found) == len(of_each)
        assert all(np.array_equal(row, three[number]) for row, three in zip(found, of_each, strict=True))
        assert found.dtype == (np.float32 if number == 2 else np.int32)


def test_cubes_of_all_channels_are_those_of_each():
    params = AugmentParams.identity(3, 2)
    params.has_bias[:] = [True, False, True]
    params.bias[:] = np.random.default_rng(0).standard_normal(params.bias.shape)
    wanted = np.zeros((3, 2, 64), np.float32)
    for row in (0, 2):
        wanted[row] = [coefficient_cube(bia).ravel() for bia in params.bias[row]]
    assert np.array_equal(triton_tables.cubes(params), wanted)


@pytest.mark.parametrize("is_warped", [False, True])
@pytest.mark.parametrize(("shape", "box"), [((700, 2000, 2000), (550, 40, 40)), ((3, 60_000, 60_000), (2, 40_000, 40))])
def test_boxes_beyond_what_the_kernels_can_count_are_refused_in_words(is_warped, shape, box):
    _, ny, nz = shape
    steps = (ny * nz, nz, 1)
    stored = np.array([[0, 0, 9, 3, 1, 0, 9, 3, 1, 3, 3, 3], [0, 0, *steps, 0, *steps, *box]], np.int64)
    flags = np.array([True, is_warped])
    if not is_warped and box[1] < 10_000:
        # Planes of a crop are found in int64.
        triton_tables.check_reach(stored, flags)
        return
    with pytest.raises(DatasetError, match=rf"{box[0]} x {box[1]} x 40 voxels .* count to 2\^31. Set data.augment"):
        triton_tables.check_reach(stored, flags)


def test_boxes_of_usual_scans_are_taken():
    stored = np.array([[0, 0, 1_000_000, 1000, -1, 0, 1_000_000, 1000, 1, 1000, 1000, 1000]], np.int64)
    triton_tables.check_reach(stored, np.array([True]))
    triton_tables.check_reach(stored[:0], np.array([], bool))
