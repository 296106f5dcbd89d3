"""The denoiser and the images that lead it."""

import nibabel as nib
import numpy as np
import pytest
import torch

from voxelocity_lab.recipes.tractography.exemplars import Frame
from voxelocity_lab.recipes.tractography.model import Denoiser, DenoiserConfig, WaveDecoder, pack
from voxelocity_lab.recipes.tractography.volume import find_outside_mm, read_distance, read_volume
from voxelocity_observe.core.errors import ConfigError, ScanError

FRAME = Frame(
    mean_mm=np.random.default_rng(0).normal(0, 10, (3, 16, 3)).astype(np.float32),
    spread_mm=np.float32([5, 6, 7]),
    scale_mm=np.float32([2, 3, 4]),
    sizes=np.float32([4, 3, 2, 1, 0.5]),
)
SMALL = DenoiserConfig(num_points=16, num_waves=5, width=16, depth=2)
NUM_AROUND = 2
AFFINE = np.array([[-2, 0, 0, 20], [0, 0, 2, -20], [0, 3, 0, -30], [0, 0, 0, 1.0]])


def save(path, values):
    nib.save(nib.Nifti1Image(values.astype(np.float32), AFFINE), path)
    return path


def packed(num=5):
    numbers = np.random.default_rng(0)
    exemplars_mm = numbers.normal(0, 10, (num, 1 + NUM_AROUND, 16, 3)).astype(np.float32)
    bundle = np.arange(num) % 3
    noisy = torch.from_numpy(numbers.standard_normal((num, 5, 3), dtype=np.float32))
    context = torch.from_numpy(FRAME.context(exemplars_mm, bundle))
    return pack(noisy, context, torch.arange(num) * 200, torch.from_numpy(bundle))


def network_with_weights(volume=None):
    network = Denoiser(SMALL, FRAME, NUM_AROUND, volume)
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    return network


def test_the_answer_begins_at_zero_and_depends_on_time_bundle_neighbors_and_streamline():
    assert torch.equal(Denoiser(SMALL, FRAME, NUM_AROUND)(packed()), torch.zeros(5, 3, 5))
    network = network_with_weights()
    answer = network(packed(1))
    assert packed(1).shape[1] == 3 + 3 * (1 + NUM_AROUND) + 3
    for channel in range(packed(1).shape[1]):
        changed = packed(1)
        changed[:, channel] += 1.0
        assert not torch.allclose(network(changed), answer), channel


def test_each_streamline_is_answered_alone():
    network = network_with_weights()
    together = network(packed())
    assert torch.allclose(together[3:4], network(packed()[3:4]), atol=1e-5)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"16 points have no 17 waves; give network\.num_waves of at most 16"):
        Denoiser(SMALL.model_copy(update={"num_waves": 17}), FRAME, NUM_AROUND)


def test_torch_places_streamlines_where_numpy_does():
    numbers = np.random.default_rng(5)
    seen, bundle = numbers.standard_normal((4, 5, 3), dtype=np.float32), np.array([0, 1, 2, 1])
    exemplars_mm = FRAME.mean_mm[bundle][:, None] + numbers.normal(0, 3, (4, 3, 16, 3)).astype(np.float32)
    decoder, numbers = WaveDecoder(FRAME), torch.from_numpy(bundle)
    context = torch.from_numpy(FRAME.context(exemplars_mm, bundle))
    mean_mm, first = FRAME.mean_mm[bundle], exemplars_mm[:, 0]
    smooth = mean_mm + FRAME.basis.T @ (FRAME.basis @ (first - mean_mm))
    np.testing.assert_allclose(decoder.exemplar_mm(context, numbers).transpose(1, 2), smooth, atol=1e-3)
    changes = decoder.changes_mm(torch.from_numpy(seen).transpose(1, 2), context, numbers).transpose(1, 2)
    placed = FRAME.placed(seen, first, FRAME.scales(exemplars_mm, bundle))
    np.testing.assert_allclose(first + changes.numpy(), placed, atol=1e-3)


def test_an_image_is_found_at_points_in_millimeters_whatever_its_axes(tmp_path):
    values = np.random.default_rng(1).random((8, 9, 10))
    volume = read_volume(save(tmp_path / "fa.nii.gz", values), None)
    index = np.array([[0, 0, 0], [7, 8, 9], [3, 4, 5], [1, 7, 2]])
    points = torch.tensor(nib.affines.apply_affine(AFFINE, index).T[None], dtype=torch.float32)
    high = np.percentile(values, 99.0)
    assert volume(points)[0, 0] == pytest.approx(np.clip(values[tuple(index.T)] / high, 0, 1.5), rel=1e-4)
    assert volume(points + 500.0).abs().max() == 0.0


def test_a_direction_is_turned_into_ras_and_has_no_sign(tmp_path):
    along = np.zeros((4, 4, 4, 3))
    # Between the first two axes, which are x and z of RAS: FSL reverses the first one of this affine, -x.
    along[..., :2] = np.sqrt(0.5)
    one = read_volume(None, save(tmp_path / "v1.nii.gz", along))
    other = read_volume(None, save(tmp_path / "v2.nii.gz", -along))
    assert torch.equal(one.channels, other.channels)
    xx, yy, zz, xy, xz, yz = one.channels[0, :, 1, 1, 1].tolist()
    assert (xx, yy, zz, xy, xz, yz) == pytest.approx((0.5, 0.0, 0.5, 0.0, 0.5, 0.0))


def test_one_direction_in_both_of_fsls_storage_orders_is_one_in_space(tmp_path):
    vectors = np.random.default_rng(3).normal(size=(4, 5, 6, 3)).astype(np.float32)
    las = np.diag([-2.0, 2, 2, 1])
    ras = np.diag([2.0, 2, 2, 1])
    ras[0, 3] = -2.0 * 3
    nib.save(nib.Nifti1Image(vectors, las), tmp_path / "las.nii.gz")
    # dtifit writes the same components for neurological storage, whose voxels are reversed along x.
    nib.save(nib.Nifti1Image(np.ascontiguousarray(vectors[::-1]), ras), tmp_path / "ras.nii.gz")
    nib.save(nib.Nifti1Image(np.ones((4, 5, 6), np.float32), las), tmp_path / "fa.nii.gz")
    one = read_volume(tmp_path / "fa.nii.gz", tmp_path / "las.nii.gz")
    # The image decides the grid; the direction is turned onto it.
    other = read_volume(tmp_path / "fa.nii.gz", tmp_path / "ras.nii.gz")
    assert torch.equal(one.channels, other.channels)


def test_images_that_do_not_fit_are_named(tmp_path):
    image = save(tmp_path / "fa.nii.gz", np.ones((4, 4, 4)))
    with pytest.raises(ScanError, match=r"fa.nii.gz has the shape \(4, 4, 4\); a direction must be \(x, y, z, 3\)"):
        read_volume(None, image)
    with pytest.raises(ScanError, match="different grids"):
        read_volume(image, save(tmp_path / "v1.nii.gz", np.ones((4, 4, 5, 3))))
    with pytest.raises(ScanError, match=r"none.nii: the file does not exist"):
        read_volume(tmp_path / "none.nii", None)
    with pytest.raises(ScanError, match="0 voxels other than 0"):
        read_distance(save(tmp_path / "empty.nii.gz", np.zeros((4, 4, 4))))


def test_a_damaged_image_is_refused(tmp_path):
    path = save(tmp_path / "fa.nii.gz", np.random.default_rng(4).random((8, 9, 10)))
    content = bytearray(path.read_bytes())
    # nibabel reads up to the last voxel, and not to the checksum behind it.
    content[-6] ^= 1
    path.write_bytes(content)
    with pytest.raises(ScanError, match=r"fa.nii.gz: the gzip data is damaged"):
        read_volume(path, None)


def test_points_outside_a_mask_are_led_back_into_it(tmp_path):
    values = np.zeros((10, 10, 10))
    values[4:6, 4:6, 4:6] = 1
    mask = save(tmp_path / "mask.nii.gz", values)
    inside, outside = nib.affines.apply_affine(AFFINE, [[5.0, 5, 5], [8, 5, 5]])
    assert find_outside_mm(mask, np.stack([inside, outside, inside + 1000.0])).tolist() == [0.0, 6.0, np.inf]
    point = torch.tensor(outside, dtype=torch.float32).reshape(1, 3, 1).requires_grad_()
    distance = read_distance(mask)(point)
    assert distance.item() == pytest.approx(6.0, rel=1e-5)
    distance.backward()
    assert (outside - 0.5 * point.grad.flatten().numpy())[0] > outside[0], "x falls along this axis"


def test_the_network_with_an_image_learns_from_it(tmp_path):
    volume = read_volume(save(tmp_path / "fa.nii.gz", np.random.default_rng(2).random((12, 12, 12))), None)
    network = network_with_weights(volume)
    answer = network(packed())
    volume.channels.zero_()
    assert not torch.allclose(network(packed()), answer)
    assert "volume.channels" in network.state_dict()
