from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.batch import Draw
from voxelocity.data.augment import AugmentConfig, AugmentParams, apply
from voxelocity.data.augment.built_in import affine_matrices
from voxelocity.testing.draw_reference import sample_one_by_one

ALWAYS = AugmentConfig(
    affine_probability=1.0,
    rotation_share=1.0,
    scale_share=1.0,
    translate_voxel=(1.0, 2.0, 3.0),
    elastic_probability=1.0,
    bias_probability=1.0,
    noise_probability=1.0,
    noise_std_range=(0.1, 0.2),
    blur_probability=1.0,
    intensity_scale_probability=1.0,
    intensity_shift_probability=1.0,
    contrast_probability=1.0,
    low_resolution_probability=1.0,
    gamma_probability=1.0,
    gamma_inverted_probability=1.0,
    cutout_probability=1.0,
    cutout_boxes=3,
)
SHAPE = (24, 32, 50)


def draws(num, epoch=0):
    return [Draw(case_id=f"case{case}", case=case, epoch=epoch, draw=case % 3) for case in range(num)]


def sample(given, **options):
    return apply.sample(given, patch_shape=SHAPE, **options)


def assert_equal(first, second):
    for field in fields(AugmentParams):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name), err_msg=field.name)


@given(order=st.permutations(range(6)), size=st.integers(1, 6))
def test_numbers_of_a_sample_do_not_depend_on_the_batch(order, size):
    config = AugmentConfig(elastic_probability=0.5, bias_probability=0.5)
    whole = sample(draws(6), seed=3, num_channels=2, config=config)
    chosen = order[:size]
    part = sample([draws(6)[row] for row in chosen], seed=3, num_channels=2, config=config)
    for field in fields(AugmentParams):
        values = getattr(whole, field.name)
        is_per_sample = isinstance(values, np.ndarray) and field.name != "swapped_classes"
        wanted = values[list(chosen)] if is_per_sample else values
        np.testing.assert_array_equal(getattr(part, field.name), wanted, err_msg=field.name)


def test_seed_epoch_case_and_draw_all_matter():
    def seeds(given, seed=0):
        return sample(given, seed=seed, num_channels=1, config=ALWAYS).noise_seed.tolist()

    one = Draw(case_id="a", case=0, epoch=0, draw=0)
    others = [
        Draw(case_id="a", case=1, epoch=0, draw=0),
        Draw(case_id="a", case=0, epoch=1, draw=0),
        Draw(case_id="a", case=0, epoch=0, draw=1),
    ]
    numbers = seeds([one, *others]) + seeds([one], seed=1)
    assert len(set(numbers)) == 5


def test_disabled_augmentation_changes_nothing():
    params = sample(draws(4), seed=0, num_channels=2, config=ALWAYS.model_copy(update={"enabled": False}))
    assert_equal(params, AugmentParams.identity(4, 2))


def test_changing_one_probability_leaves_the_other_changes_as_they_were():
    with_all = sample(draws(20), seed=0, num_channels=2, config=ALWAYS)
    never_affine = ALWAYS.model_copy(
        update={"affine_probability": 0.0, "elastic_probability": 0.0, "gamma_probability": 0.0}
    )
    without = sample(draws(20), seed=0, num_channels=2, config=never_affine)
    assert not without.is_warped.any()
    assert (without.gamma == 1.0).all()
    for name in ("flips", "bias", "blur_sigma_voxel", "contrast", "scale", "shift", "noise_std", "noise_seed"):
        np.testing.assert_array_equal(getattr(with_all, name), getattr(without, name), err_msg=name)


def test_values_fill_their_ranges_and_stay_in_them():
    params = sample(draws(500), seed=0, num_channels=2, config=ALWAYS)
    for values, (low, high) in (
        (params.gamma, ALWAYS.gamma_range),
        (params.scale, ALWAYS.intensity_scale_range),
        (params.shift, ALWAYS.intensity_shift_range),
        (params.noise_std, ALWAYS.noise_std_range),
        (params.offset_voxel[:, 2], (-3.0, 3.0)),
    ):
        tenth = (high - low) / 10
        assert low - 1e-6 <= values.min() < low + tenth
        assert high - tenth < values.max() <= high + 1e-6
    assert params.flips.mean(axis=0) == pytest.approx([0.5, 0.5, 0.5], abs=0.1)


def test_probabilities_are_honored():
    config = AugmentConfig(flip_probability=(0.0, 1.0, 0.3), affine_probability=0.25, gamma_probability=0.6)
    params = sample(draws(1000), seed=0, num_channels=1, config=config)
    assert params.flips.mean(axis=0) == pytest.approx([0.0, 1.0, 0.3], abs=0.06)
    assert params.is_warped.mean() == pytest.approx(0.25, abs=0.06)
    assert (params.gamma != 1.0).mean() == pytest.approx(0.6, abs=0.06)


@pytest.mark.parametrize("spacing_mm", [None, (0.5, 1.0, 3.0)])
def test_affine_is_rigid_in_millimeters_but_for_the_zoom(spacing_mm):
    config = AugmentConfig(
        affine_probability=1.0, rotation_share=1.0, scale_share=1.0, rotation_degrees=(30.0, 40.0, 50.0)
    )
    params = sample(draws(50), seed=0, num_channels=1, config=config, spacing_mm=spacing_mm)
    spacing = np.diag(spacing_mm or (1.0, 1.0, 1.0))
    for matrix in params.matrix.astype(np.float64):
        in_mm = spacing @ matrix @ np.linalg.inv(spacing)
        zoom = np.linalg.det(in_mm) ** (-1 / 3)
        assert 0.7 <= zoom <= 1.4
        np.testing.assert_allclose(in_mm @ in_mm.T * zoom**2, np.eye(3), atol=1e-5)


def test_quarter_turn_on_an_anisotropic_grid_has_its_known_matrix():
    chosen, quarter_about_z = np.array([[True, False]]), np.array([[0.0, 0.0, 90.0]])
    spacing = np.array([[1.0, 2.0, 5.0]])
    (matrix,) = affine_matrices(chosen, quarter_about_z, np.ones((1, 1)), np.zeros((1, 9)), spacing)
    # Content turns from x to y: what is found 1 voxel (2 mm) along y stood 2 voxels (2 mm) along x.
    np.testing.assert_allclose(matrix, [[0, 2, 0], [-0.5, 0, 0], [0, 0, 1]], atol=1e-6)


def test_quarter_turns_move_voxel_onto_voxel_whatever_the_spacing():
    config = AugmentConfig(quarter_turn_probability=(0.5, 0.5, 0.5), affine_probability=0.0)
    params = sample(draws(40), seed=0, num_channels=1, config=config, spacing_mm=(1.0, 2.0, 3.0))
    matrices = params.matrix
    assert set(np.unique(matrices)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(matrices @ matrices.transpose(0, 2, 1), np.tile(np.eye(3), (40, 1, 1)))
    np.testing.assert_allclose(np.linalg.det(matrices), 1.0)
    assert len({matrix.tobytes() for matrix in matrices}) > 10


def test_a_sample_that_nothing_moves_is_not_warped():
    config = AugmentConfig(affine_probability=1.0, rotation_share=0.0, scale_share=0.0)
    assert not sample(draws(5), seed=0, num_channels=1, config=config).is_warped.any()


def test_about_half_of_the_channels_are_blurred_and_coarse_where_a_sample_is():
    params = sample(draws(400), seed=0, num_channels=2, config=ALWAYS)
    assert (params.blur_sigma_voxel > 0.0).all(axis=2).mean() == pytest.approx(0.5, abs=0.08)
    assert (params.low_resolution < 1.0).mean() == pytest.approx(0.5, abs=0.08)


def test_boxes_have_sizes_of_their_range_and_centers_anywhere_in_the_patch():
    config = AugmentConfig.only(cutout_probability=0.5, cutout_boxes=2, cutout_size_range=(0.25, 0.5), cutout_value=3.0)
    params = sample(draws(600), seed=0, num_channels=1, config=config)
    is_cut = params.cutout.any(axis=(1, 2, 3))
    assert is_cut.mean() == pytest.approx(0.5, abs=0.06)
    assert (params.cutout_value == 3.0).all()
    start, stop = params.cutout[is_cut].reshape(-1, 2, 3).swapaxes(0, 1)
    assert (start >= 0).all()
    assert (start < stop).all()
    assert (stop <= SHAPE).all()
    sides, inside = stop - start, (start > 0) & (stop < SHAPE)
    for axis, side in enumerate(SHAPE):
        assert sides[:, axis].max() == side // 2
        assert sides[inside[:, axis], axis].min() >= side // 4
        middles = (start[:, axis] + stop[:, axis])[inside[:, axis]] / 2
        assert middles.mean() == pytest.approx(side / 2, abs=0.05 * side)
    assert 0.2 < 1 - inside.all(axis=1).mean() < 0.9, "some are cut off by the border"


def test_a_box_has_at_least_a_voxel_and_none_is_drawn_in_vain():
    tiny = AugmentConfig.only(cutout_probability=1.0, cutout_size_range=(0.001, 0.001))
    start, stop = sample(draws(5), seed=0, num_channels=1, config=tiny).cutout[:, 0].swapaxes(0, 1)
    np.testing.assert_array_equal(stop - start, 1)
    off = tiny.model_copy(update={"cutout_probability": 0.0})
    assert sample(draws(5), seed=0, num_channels=1, config=off).cutout.shape == (5, 0, 2, 3)


def test_classes_are_swapped_where_the_left_right_axis_of_the_volume_is_flipped():
    flips = AugmentConfig.only(flip_probability=(0.5, 0.5, 0.5), affine_probability=1.0, rotation_degrees=(15, 15, 15))
    params = sample(draws(40), seed=1, num_channels=1, config=flips, swapped_classes=(0, 2, 1))
    np.testing.assert_array_equal(params.is_swapped, params.flips[:, 0])
    assert params.swapped_classes.tolist() == [0, 2, 1, *range(3, 256)]
    # A patch turned by quarters has the left-right axis of the body along another of its own axes.
    turned = flips.model_copy(update={"quarter_turn_probability": (0.0, 0.0, 1.0), "affine_probability": 0.0})
    params = sample(draws(40), seed=1, num_channels=1, config=turned, swapped_classes=(0, 2, 1))
    along_x = np.abs(params.matrix[:, 0]).argmax(axis=1)
    assert set(along_x.tolist()) == {0, 1}
    np.testing.assert_array_equal(params.is_swapped, params.flips[np.arange(40), along_x])


def test_changes_become_more_frequent_over_the_epochs_of_a_ramp():
    config = AugmentConfig(flip_probability=(1.0, 0.0, 0.0), affine_probability=1.0, rotation_share=1.0, ramp_epochs=4)
    at_once = config.model_copy(update={"ramp_epochs": 0})

    def params(config, epoch):
        return sample(draws(200, epoch), seed=1, num_channels=1, config=config)

    def num_warped(epoch):
        return sum((~np.eye(3, dtype=bool) & (matrix != 0.0)).any() for matrix in params(config, epoch).matrix)

    assert [num_warped(epoch) for epoch in (0, 4)] == [0, 200]
    assert 70 < num_warped(2) < 130
    first = params(config, 0)
    assert first.flips[:, 0].all()
    assert not first.noise_std.any()
    assert_equal(params(config, 4), params(at_once, 4))
    changed = params(config, 2).noise_std > 0.0
    np.testing.assert_array_equal(params(config, 2).noise_std[changed], params(at_once, 2).noise_std[changed])


@given(
    config=st.sampled_from(
        [
            AugmentConfig(),
            AugmentConfig.only(),
            ALWAYS,
            ALWAYS.model_copy(update={"elastic_probability": 0.0, "rotation_degrees": (30.0, 0.0, 15.0)}),
            AugmentConfig(quarter_turn_probability=(0.5, 0.5, 0.5), affine_probability=0.5, shear=0.2),
            AugmentConfig(ramp_epochs=7, elastic_probability=0.9, bias_probability=0.5, label_interpolation="vote"),
        ]
    ),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 9),
    num_channels=st.integers(1, 4),
    spacing_mm=st.sampled_from([None, (1.0, 1.0, 1.0), (0.7, 0.7, 5.0)]),
    swapped=st.sampled_from([(), (0, 2, 1)]),
    size=st.sampled_from([0, 1, 5]),
)
def test_a_batch_has_the_numbers_that_its_samples_have_one_by_one(
    config, seed, epoch, num_channels, spacing_mm, swapped, size
):
    batch = [Draw(case_id="a", case=case, epoch=epoch + case % 2, draw=3 * case) for case in range(size)]
    options = {
        "seed": seed, "num_channels": num_channels, "patch_shape": SHAPE, "config": config, "spacing_mm": spacing_mm,
        "swapped_classes": swapped,
    }  # fmt: skip
    ours, wanted = apply.sample(batch, **options), sample_one_by_one(batch, **options)
    assert_equal(ours, wanted)
    for field in fields(wanted):
        one, other = getattr(ours, field.name), getattr(wanted, field.name)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), field.name
