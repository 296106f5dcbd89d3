from __future__ import annotations

import warnings

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.planning.fingerprint import take_fingerprint


@pytest.fixture
def cases(tmp_path) -> Cases:
    """Three CTs with air and an organ."""
    refs = []
    for number in range(3):
        image = np.full((24, 20, 16), -1000.0, np.float32)
        image[4:20, 4:16, 3:13] = np.random.default_rng(number).normal(60, 20, (16, 12, 10))
        image[5, 5, 5] = 400.0
        label = np.zeros(image.shape, np.uint8)
        label[6:18, 6:14, 5:11] = 1
        paths = tmp_path / f"image_{number}.nii", tmp_path / f"label_{number}.nii"
        for array, path in zip((image, label), paths, strict=True):
            nib.save(nib.Nifti1Image(array, np.diag([-1, -1, 1, 1])), path)
        refs.append(VolumeRef(case_id=f"case_{number}", images=(paths[0],), label=paths[1]))
    return Cases(
        name="a", root=tmp_path, layout="csv", channels=("CT",), labels={0: "background", 1: "organ"}, refs=tuple(refs)
    )


def test_a_value_that_decides_the_statistics_of_all_cts_is_named_by_its_place_in_the_file(cases):
    path = cases.refs[1].images[0]
    image = np.asarray(nib.load(path).dataobj).copy()
    image[7, 8, 9] = -3e8
    nib.save(nib.Nifti1Image(image, np.diag([-1, -1, 1, 1])), path)
    with pytest.warns(
        UserWarning, match=r"^plan: case 'case_1': the value -3e\+08 at \(x, y, z\) = \(7, 8, 9\)"
    ) as said:
        found = take_fingerprint(cases, num_sampled=3, num_threads=1)
    assert found.intensity[0].std > 1e6
    assert "set data.prepare.intensity.mean and .std" in str(said[0].message)


def test_usual_cts_are_not_warned_about(cases):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert take_fingerprint(cases, num_sampled=3, num_threads=1).is_ct
