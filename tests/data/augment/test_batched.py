import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voxelocity.core.batch import Draw
from voxelocity.core.errors import InputError
from voxelocity.data.augment import AugmentConfig, AugmentParams, apply, sample
from voxelocity.testing.augment_reference import augment_one, source_coordinates

IMAGE_TOLERANCE = 1e-4
"""Largest difference from the float64 reference, for intensities of deviation 1. Coordinates in float32 are off by up
to 1e-5 voxels, and neighbours of white noise differ by up to 10."""
TIE_VOXEL = 1e-4
"""Labels agree wherever the source lies further than this from the middle between two voxels."""

EVERYTHING = AugmentConfig(
    affine_probability=0.7,
    translate_voxel=(3.0, 2.0, 1.0),
    gamma_probability=0.5,
    intensity_scale_probability=0.5,
    intensity_shift_probability=0.5,
    noise_probability=0.5,
)
ONLY_AFFINE = AugmentConfig(
    flip_probability=(0.0, 0.0, 0.0),
    affine_probability=1.0,
    gamma_probability=0.0,
    intensity_scale_probability=0.0,
    intensity_shift_probability=0.0,
    noise_probability=0.0,
)


def draws(num, epoch=0):
    return [Draw(case_id=f"case{case}", case=case, epoch=epoch) for case in range(num)]


def batch(num, num_channels, shape, seed=0):
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(num, num_channels, *shape)).astype(np.float32)
    label = rng.integers(0, 5, (num, *shape)).astype(np.uint8)
    return image, label


def augmented(image, label, params, margin=(0, 0, 0)):
    result = apply(torch.from_numpy(image.copy()), torch.from_numpy(label.copy()), params, margin_voxel=margin)
    return result[0].numpy(), result[1].numpy()


def assert_parity(image, label, params, margin=(0, 0, 0)):
    fast_image, fast_label = augmented(image, label, params, margin)
    assert (fast_image.dtype, fast_label.dtype) == (np.float32, np.uint8)
    for row in range(len(image)):
        slow_image, slow_label = augment_one(image[row], label[row], params, row, margin)
        np.testing.assert_allclose(fast_image[row], slow_image, rtol=0, atol=IMAGE_TOLERANCE)
        differs = fast_label[row] != slow_label
        if differs.any():
            coordinates = source_coordinates(label.shape[1:], params, row)
            from_tie = np.abs(coordinates % 1.0 - 0.5).min(axis=0)
            from_tie = from_tie[tuple(slice(m, n - m) for m, n in zip(margin, from_tie.shape, strict=True))]
            for axis in np.flatnonzero(params.flips[row]):
                from_tie = np.flip(from_tie, axis)
            assert params.has_affine[row]
            assert from_tie[differs].max() < TIE_VOXEL
            assert differs.mean() < 0.001


@settings(max_examples=20, deadline=None)
@given(margin=st.tuples(*[st.integers(0, 4)] * 3), seed=st.integers(0, 2**31))
def test_batch_with_a_margin_agrees_with_the_reference(margin, seed):
    image, label = batch(3, 2, tuple(n + 2 * m for n, m in zip((9, 6, 7), margin, strict=True)), seed)
    params = sample(draws(3), seed=seed, num_channels=2, config=EVERYTHING)
    assert_parity(image, label, params, margin)


def test_a_turned_patch_sees_the_context_in_its_margin():
    image, label = batch(1, 1, (16, 16, 16))
    turned = sample(draws(1), seed=0, num_channels=1, config=ONLY_AFFINE)
    with_context, _ = augmented(image, label, turned, (4, 4, 4))
    inside = np.s_[:, :, 4:-4, 4:-4, 4:-4]
    without, _ = augmented(np.ascontiguousarray(image[inside]), label[:, 4:-4, 4:-4, 4:-4].copy(), turned)
    assert with_context.shape == without.shape == (1, 1, 8, 8, 8)
    assert np.abs(with_context - without)[0, 0, 0, 0].max() > 0.1, "a corner comes from beyond the patch"
    np.testing.assert_allclose(with_context[0, 0, 3:5, 3:5, 3:5], without[0, 0, 3:5, 3:5, 3:5], atol=1e-4)


def test_a_margin_that_leaves_nothing_is_refused():
    image, label = batch(1, 1, (8, 8, 8))
    with pytest.raises(InputError, match=r"a margin of \(4, 0, 0\) voxels on both sides leaves nothing"):
        augmented(image, label, AugmentParams.identity(1, 1), (4, 0, 0))


@settings(max_examples=30, deadline=None)
@given(
    num=st.integers(1, 4),
    num_channels=st.integers(1, 4),
    shape=st.tuples(*[st.integers(1, 14)] * 3),
    seed=st.integers(0, 2**31),
    spacing_mm=st.sampled_from([None, (1.0, 1.0, 1.0), (0.7, 1.0, 3.0)]),
)
def test_batch_agrees_with_the_reference(num, num_channels, shape, seed, spacing_mm):
    image, label = batch(num, num_channels, shape, seed)
    params = sample(draws(num), seed=seed, num_channels=num_channels, config=EVERYTHING, spacing_mm=spacing_mm)
    assert_parity(image, label, params)


@pytest.mark.parametrize("num_channels", [1, 4])
def test_batch_agrees_with_the_reference_on_patches_of_a_usual_size(num_channels):
    image, label = batch(4, num_channels, (40, 56, 32))
    params = sample(draws(4), seed=11, num_channels=num_channels, config=EVERYTHING, spacing_mm=(0.8, 0.8, 2.0))
    assert params.has_affine.any()
    assert not params.has_affine.all()
    assert_parity(image, label, params)


@pytest.mark.data
def test_batch_agrees_with_the_reference_on_a_real_scan(real_data):
    folder = real_data / "ms_multimodal"
    files = [folder / "imagesTr" / f"ms_patient07_{channel:04d}.nii.gz" for channel in range(4)]
    whole_label = np.asarray(nib.load(folder / "labelsTr" / "ms_patient07.nii.gz").dataobj)
    corner = [max(int(n) // 2 - 16, 0) for n in whole_label.shape]
    box = tuple(slice(start, start + 32) for start in corner)
    image = np.stack([np.asarray(nib.load(file).dataobj[box], dtype=np.float32) for file in files])
    image = (image - image.mean(axis=(1, 2, 3), keepdims=True)) / image.std(axis=(1, 2, 3), keepdims=True)
    label = whole_label[box].astype(np.uint8)
    params = sample(draws(3), seed=5, num_channels=4, config=EVERYTHING)
    assert_parity(np.stack([image] * 3), np.stack([label] * 3), params)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(5)), size=st.integers(1, 5), seed=st.integers(0, 1000))
def test_a_sample_comes_out_the_same_bit_for_bit_whatever_else_is_in_the_batch(order, size, seed):
    image, label = batch(5, 2, (13, 9, 11))
    params = sample(draws(5), seed=seed, num_channels=2, config=EVERYTHING)
    whole_image, whole_label = augmented(image, label, params)
    rows = order[:size]
    part_image, part_label = augmented(image[rows], label[rows], params.rows(rows))
    assert part_image.tobytes() == whole_image[rows].tobytes()
    assert part_label.tobytes() == whole_label[rows].tobytes()


def test_identity_parameters_change_nothing():
    image, label = batch(2, 3, (6, 5, 4))
    fast_image, fast_label = augmented(image, label, AugmentParams.identity(2, 3))
    np.testing.assert_array_equal(fast_image, image)
    np.testing.assert_array_equal(fast_label, label)


def test_identity_affine_puts_every_voxel_back_in_its_place():
    image, label = batch(1, 2, (7, 6, 1))
    params = AugmentParams.identity(1, 2)
    params.has_affine[0] = True
    fast_image, fast_label = augmented(image, label, params)
    np.testing.assert_allclose(fast_image, image, atol=1e-5)
    np.testing.assert_array_equal(fast_label, label)


@pytest.mark.parametrize("has_affine", [False, True])
def test_flips_are_exact_with_and_without_an_affine(has_affine):
    image, label = batch(3, 1, (4, 5, 6))
    params = AugmentParams.identity(3, 1)
    params.flips[:] = [[True, False, False], [False, True, True], [True, True, True]]
    params.has_affine[:] = has_affine
    fast_image, fast_label = augmented(image, label, params)
    for row, axes in enumerate([(0,), (1, 2), (0, 1, 2)]):
        np.testing.assert_array_equal(fast_label[row], np.flip(label[row], axes))
        wanted = np.flip(image[row], [axis + 1 for axis in axes])
        np.testing.assert_allclose(fast_image[row], wanted, atol=1e-5 if has_affine else 0)


def test_whole_voxel_offset_shifts_image_and_label_together_and_repeats_the_border():
    image, label = batch(1, 1, (6, 4, 4))
    params = AugmentParams.identity(1, 1)
    params.has_affine[0] = True
    params.offset_voxel[0] = (2.0, 0.0, 0.0)
    fast_image, fast_label = augmented(image, label, params)
    source = [2, 3, 4, 5, 5, 5]
    np.testing.assert_array_equal(fast_label[0], label[0][source])
    np.testing.assert_allclose(fast_image[0, 0], image[0, 0][source], atol=1e-5)


def test_zoom_of_two_shows_the_middle_half():
    image = np.arange(8, dtype=np.float32).reshape(1, 1, 8, 1, 1)
    params = AugmentParams.identity(1, 1)
    params.has_affine[0] = True
    params.matrix[0] /= 2.0
    fast_image, _ = augmented(image, np.zeros((1, 8, 1, 1), np.uint8), params)
    np.testing.assert_allclose(fast_image[0, 0, :, 0, 0], np.arange(8) / 2 + 1.75, atol=1e-5)


def test_ball_stays_a_ball_in_millimetres_when_turned_on_an_anisotropic_grid():
    spacing = np.array([1.0, 1.0, 3.0])
    shape = (33, 33, 11)
    offset_mm = (np.indices(shape) - (np.array(shape).reshape(3, 1, 1, 1) - 1) / 2) * spacing.reshape(3, 1, 1, 1)
    label = (np.linalg.norm(offset_mm, axis=0) < 11).astype(np.uint8)[None]
    config = ONLY_AFFINE.model_copy(update={"rotation_degrees": (60.0, 60.0, 60.0), "scale_range": (1.0, 1.0)})
    image = np.zeros((1, 1, *shape), np.float32)

    def overlap(spacing_mm):
        params = sample(draws(1), seed=1, num_channels=1, config=config, spacing_mm=spacing_mm)
        turned = augmented(image, label, params)[1]
        return 2 * (turned & label).sum() / (turned.sum() + label.sum())

    assert overlap((1.0, 1.0, 3.0)) > 0.93
    assert overlap(None) < 0.85


def test_gamma_keeps_minimum_and_maximum_of_each_channel_and_the_order_of_values():
    image, label = batch(2, 2, (5, 6, 7))
    params = AugmentParams.identity(2, 2)
    params.gamma[0] = (0.7, 1.5)
    bent, _ = augmented(image, label, params)
    np.testing.assert_allclose(bent.min(axis=(2, 3, 4)), image.min(axis=(2, 3, 4)), atol=1e-6)
    np.testing.assert_allclose(bent.max(axis=(2, 3, 4)), image.max(axis=(2, 3, 4)), atol=1e-6)
    assert (bent[0, 0] >= image[0, 0] - 1e-6).all()
    assert (bent[0, 1] <= image[0, 1] + 1e-6).all()
    np.testing.assert_array_equal(bent[1], image[1])


def test_gamma_leaves_a_constant_channel_as_it_is():
    params = AugmentParams.identity(1, 1)
    params.gamma[:] = 0.5
    bent, _ = augmented(np.full((1, 1, 3, 3, 3), -2.5, np.float32), np.zeros((1, 3, 3, 3), np.uint8), params)
    assert (bent == -2.5).all()


def test_noise_has_the_stated_deviation_and_comes_again_with_its_seed():
    params = AugmentParams.identity(2, 1)
    params.noise_std[:] = 0.25
    params.noise_seed[:] = (3, 4)
    image, label = np.zeros((2, 1, 20, 20, 20), np.float32), np.zeros((2, 20, 20, 20), np.uint8)
    first, _ = augmented(image, label, params)
    assert first.std(axis=(1, 2, 3, 4)) == pytest.approx([0.25, 0.25], rel=0.05)
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first, augmented(image, label, params)[0])


def test_global_random_state_of_torch_is_left_alone():
    image, label = batch(2, 1, (5, 5, 5))
    before = torch.get_rng_state()
    augmented(image, label, sample(draws(2), seed=0, num_channels=1, config=EVERYTHING))
    assert torch.equal(torch.get_rng_state(), before)


def test_channels_last_batches_come_out_the_same():
    image, label = batch(3, 2, (8, 9, 10))
    params = sample(draws(3), seed=2, num_channels=2, config=EVERYTHING)
    wanted, _ = augmented(image, label, params)
    given = torch.from_numpy(image.copy()).contiguous(memory_format=torch.channels_last_3d)
    got, _ = apply(given, torch.from_numpy(label.copy()), params)
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (torch.zeros(2, 1, 4, 4, 4, dtype=torch.float16), torch.zeros(2, 4, 4, 4, dtype=torch.uint8), "give a float32"),
        (torch.zeros(2, 1, 4, 4, 4), torch.zeros(2, 4, 4, 4), "a uint8 label"),
        (torch.zeros(2, 2, 4, 4, 4), torch.zeros(2, 4, 4, 4, dtype=torch.uint8), "2 samples of 1 channels"),
        (
            torch.zeros(2, 1, 4, 4, 4),
            torch.zeros(2, 4, 4, 5, dtype=torch.uint8),
            r"\(b, c, x, y, z\) and \(b, x, y, z\)",
        ),
    ],
)
def test_batch_that_does_not_fit_is_refused(image, label, message):
    with pytest.raises(InputError, match=message):
        apply(image, label, AugmentParams.identity(2, 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_cuda_agrees_with_the_cpu_and_reads_nothing_back():
    image, label = batch(6, 2, (24, 32, 20))
    config = EVERYTHING.model_copy(update={"noise_probability": 0.0})
    params = sample(draws(6), seed=1, num_channels=2, config=config)
    wanted_image, wanted_label = augmented(image, label, params)
    on_device = torch.from_numpy(image).cuda(), torch.from_numpy(label).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got_image, got_label = apply(*on_device, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_allclose(got_image.cpu().numpy(), wanted_image, atol=IMAGE_TOLERANCE)
    assert (got_label.cpu().numpy() != wanted_label).mean() < 0.001
