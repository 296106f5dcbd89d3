"""What a command knows of its scans before it reads a voxel."""

import nibabel as nib
import numpy as np
import pytest

from shared.small_predictor import small_spec
from voxelocity.core.requests.predict import PredictRequest
from voxelocity.infer import plan_job, save_model
from voxelocity.step import build_network


@pytest.fixture
def run(tmp_path):
    spec = small_spec(prepare={"spacing_mm": [1.0, 1.0, 1.0]})
    folder = tmp_path / "run"
    folder.mkdir()
    save_model(folder, build_network(spec.network, num_channels=1, num_classes=2, seed=0), spec)
    return folder


def test_a_scan_that_cannot_be_prepared_is_named(run, tmp_path):
    scans = []
    for name, step in (("fits", 1.0), ("meters", 1000.0)):
        scans.append(tmp_path / f"{name}.nii.gz")
        nib.save(nib.Nifti1Image(np.ones((8, 8, 8), np.float32), np.diag([step, step, step, 1.0])), scans[-1])
    failed = {}
    request = PredictRequest.of_call({}, models=run, inputs=scans, out=tmp_path / "out")
    job = plan_job(request, on_failure=failed.__setitem__)
    assert [ref.case_id for ref in job.usable_refs] == ["fits"]
    (reason,) = failed.values()
    assert "case 'meters': prepare.resample: the scan would have 8000 x 8000 x 8000" in reason
