"""Probabilities as files: what the network says, on the grid of the scan, in bounded memory."""

import nibabel as nib
import numpy as np
import pytest
import torch

from shared.small_predictor import predictor, scans
from voxelocity.data.decode import read_header
from voxelocity.infer.predictor import Scratch
from voxelocity_observe.core.errors import ScanError

STEP = 1 / 255


def written(predicts, ref, folder):
    """The probabilities (x, y, z, k) of a scan as a reader of NIfTI sees them, the image, and the prediction."""
    (prediction,) = predicts.stream([ref], num_threads=1)
    path = folder / "p.nii.gz"
    prediction.probabilities.write(path, read_header(ref.images[0]))
    return nib.load(path).get_fdata(), nib.load(path), prediction


@pytest.mark.parametrize("region_order", [(), (1, 2, 1)], ids=["exclusive", "overlapping"])
def test_they_are_those_of_the_network(tmp_path, region_order):
    (ref,) = scans(tmp_path, 1)
    predicts = predictor(
        num_classes=3, region_order=region_order, scratch=Scratch(folder=tmp_path, keeps_probabilities=True)
    )
    found, image, _ = written(predicts, ref, tmp_path)
    windows = torch.from_numpy(predicts.load(ref).volume.intensities())[None]
    with torch.no_grad():
        logits = predicts._network(windows)[0].permute(1, 2, 3, 0)
    expected = logits.sigmoid() if region_order else logits.softmax(dim=-1)
    np.testing.assert_allclose(found, expected.numpy(), atol=0.51 * STEP)
    assert image.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(image.affine, nib.load(ref.images[0]).affine)


@pytest.mark.parametrize("shape", [(30, 12, 9), (9, 12, 30)])
def test_of_many_windows_on_another_spacing_they_agree_with_the_classes(tmp_path, shape):
    (ref,) = scans(tmp_path, 1, shape=shape)
    predicts = predictor(
        num_classes=3, spacing_mm=[1.3, 1.0, 0.8], scratch=Scratch(folder=tmp_path, keeps_probabilities=True)
    )
    found, _, prediction = written(predicts, ref, tmp_path)
    assert found.shape == (*shape, 3)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, atol=3 * STEP)
    largest = np.sort(found, axis=-1)
    # Where two classes are nearly equal, a byte cannot say which is ahead.
    is_clear = largest[..., -1] - largest[..., -2] > 2 * STEP
    assert is_clear.mean() > 0.5
    assert (found.argmax(axis=-1) == prediction.classes)[is_clear].all()


def test_what_was_cropped_away_is_background(tmp_path):
    (ref,) = scans(tmp_path, 1, shape=(20, 14, 12))
    voxels = np.asarray(nib.load(ref.images[0]).dataobj).copy()
    voxels[:6] = voxels[:, :, 10:] = 0.0
    nib.save(nib.Nifti1Image(voxels, np.diag([-1.0, 1.0, 2.0, 1.0])), ref.images[0])
    predicts = predictor(crop="nonzero", scratch=Scratch(folder=tmp_path, keeps_probabilities=True))
    found, _, _ = written(predicts, ref, tmp_path)
    assert found.shape == (20, 14, 12, 2)
    assert found.max() <= 1.0
    assert (found[:6, ..., 0] > 1.0 - 1e-6).all()
    assert (found[:6, ..., 1] == 0.0).all()
    assert (found[:, :, 10:, 0] > 1.0 - 1e-6).all()
    assert (found[6:, :, :10, 0] < 1.0).any()


def test_a_full_disk_is_an_error_of_the_scan(tmp_path, monkeypatch):
    refs = scans(tmp_path, 2)
    predicts = predictor(scratch=Scratch(folder=tmp_path, keeps_probabilities=True))
    free = iter([100, 1 << 30])
    monkeypatch.setattr("voxelocity.infer.accumulator.free_disk_bytes", lambda folder: next(free))
    failed = {}
    stream = predicts.stream(refs, num_threads=0, on_failure=lambda case, error: failed.update({case: str(error)}))
    assert [prediction.scan.case_id for prediction in stream] == ["case_1"]
    assert list(failed) == ["case_0"]
    assert "case 'case_0': the probabilities of 2 classes take 1.00 KiB" in failed["case_0"]
    assert "or leave --probabilities out" in failed["case_0"]
    monkeypatch.setattr("voxelocity.infer.accumulator.free_disk_bytes", lambda folder: 0)
    with pytest.raises(ScanError, match="which has too little space for them"):
        list(predicts.stream(refs, num_threads=0))
