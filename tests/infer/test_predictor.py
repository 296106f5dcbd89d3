"""Scans through a network: what shares its passes, and what becomes of the others when one scan is broken."""

import nibabel as nib
import numpy as np
import pytest
import torch

from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Grid, Volume, VolumeRef
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.step import build_network


def predictor(*, channels=("CT",), batch_size=4):
    spec = ModelSpec.parse(
        {
            "network": {"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]},
            "channels": list(channels),
            "labels": {0: "background", 7: "organ"},
            "prepare": {},
            "window": {"shape_voxel": [8, 8, 8], "batch_size": batch_size},
            "precision": {"compute": "float32"},
        }
    )
    network = build_network(spec.network, num_channels=len(channels), num_classes=2, seed=3).eval()
    return Predictor(network, spec, device=torch.device("cpu"))


def scans(folder, num, *, shape=(8, 8, 8)):
    """References to `num` scans of noise."""
    refs = []
    for index in range(num):
        path = folder / f"case_{index}.nii.gz"
        voxels = np.random.default_rng(index).standard_normal(shape).astype(np.float32)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), path)
        refs.append(VolumeRef(case_id=f"case_{index}", images=(path,)))
    return refs


def volume(num_channels):
    image = np.zeros((num_channels, 8, 8, 8), np.float32)
    return Volume(case_id="x", image=image, label=None, grid=Grid.of((8, 8, 8), np.eye(4)))


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("broken", [0, 1, 4, 5])
def test_every_case_before_a_broken_one_is_given_before_its_error(tmp_path, broken, num_threads):
    refs = scans(tmp_path, 6)
    alone = [next(predictor().stream([ref], num_threads=0))[1] for ref in refs]
    refs[broken].images[0].write_bytes(refs[broken].images[0].read_bytes()[:-100])
    given = []
    with pytest.raises(ScanError, match=rf"case 'case_{broken}': .* the file is truncated"):
        given.extend(predictor().stream(refs, num_threads=num_threads))
    assert [scan.case_id for scan, _ in given] == [f"case_{index}" for index in range(broken)]
    for (_, prediction), expected in zip(given, alone, strict=False):
        # Passes of another number of windows may round another way where both classes are equally likely.
        assert (prediction == expected).mean() > 0.999


def test_a_scan_of_several_windows_before_a_broken_one_is_given_too(tmp_path):
    refs = scans(tmp_path, 2, shape=(20, 8, 8))
    (expected,) = [prediction for _, prediction in predictor(batch_size=16).stream(refs[:1], num_threads=0)]
    refs[1].images[0].write_bytes(b"no scan")
    stream = predictor(batch_size=16).stream(refs, num_threads=0)
    scan, prediction = next(stream)
    assert scan.case_id == "case_0"
    np.testing.assert_array_equal(prediction, expected)
    with pytest.raises(ScanError, match=r"case_1\.nii\.gz: this is not a NIfTI file"):
        next(stream)


@pytest.mark.parametrize(
    ("channels", "num_found", "text"),
    [
        (
            ("CT",),
            2,
            r"has 2 channels, but the network was trained on 1 \(CT\); give that channel alone, as a 3-D file",
        ),
        (
            ("T1", "T2"),
            1,
            r"has 1 channel, but the network was trained on 2 \(T1, T2\); give these in this order, in one 4-D file or "
            r"as the files CASE_0000\.nii\.gz to CASE_0001\.nii\.gz",
        ),
    ],
)
def test_a_scan_of_other_channels_is_refused(channels, num_found, text):
    with pytest.raises(ScanError, match=rf"^infer: case 'x' {text}$"):
        predictor(channels=channels).predict(volume(num_found))


def test_a_scan_of_the_right_channels_is_predicted_on_its_grid():
    assert predictor(channels=("T1", "T2")).predict(volume(2)).shape == (8, 8, 8)
