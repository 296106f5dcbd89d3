"""The format of predictions: as asked for, or as the scans are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.dicom_series import write_series
from voxelocity.core.volume import VolumeRef
from voxelocity.infer import outputs
from voxelocity.infer.outputs import choose_output
from voxelocity_observe.core.errors import InputError, OutputError


def refs_of(*paths):
    return [VolumeRef(case_id=str(number), images=(Path(path),)) for number, path in enumerate(paths)]


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct", np.zeros((3, 4, 5), np.int16))
    return tmp_path / "ct"


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["a.nii.gz", "b.nii"], "0.nii.gz"),
        (["a.nrrd", "b.nhdr"], "0.nrrd"),
        (["a.nrrd", "b.nii.gz"], "0.nii.gz"),
        (["a.mha"], "0.nii.gz"),
        (["a.mgz", "b.mgh"], "0.mgz"),
        (["a.mgz", "b.nrrd"], "0.nii.gz"),
        ([], "0.nii.gz"),
    ],
)
def test_auto_follows_the_scans(paths, name):
    assert choose_output("auto", refs_of(*paths), pytest.fail).file_name("0") == name


def test_auto_is_dicom_seg_for_series_and_nifti_with_one_warning_without_highdicom(series, monkeypatch):
    assert choose_output("auto", refs_of(series), pytest.fail).file_name("p1") == "p1.dcm"
    assert choose_output("auto", refs_of(series, "b.nii.gz"), pytest.fail).format == "nii.gz"
    monkeypatch.setattr(outputs, "can_write_segmentations", lambda: False)
    messages = []
    assert choose_output("auto", refs_of(series, series), messages.append).format == "nii.gz"
    assert len(messages) == 1
    assert "pip install 'voxelocity[formats]'" in messages[0]
    with pytest.raises(OutputError, match=r"dicom-seg needs highdicom, which is not installed; pip install"):
        choose_output("dicom-seg", refs_of(series), pytest.fail)


def test_a_format_that_does_not_fit_is_refused(series):
    with pytest.raises(
        InputError, match=r"case '1' \(b\.nrrd\) is not a DICOM series; choose --format nii\.gz, nrrd or mgz"
    ):
        choose_output("dicom-seg", refs_of(series, "b.nrrd"), pytest.fail)
    with pytest.raises(
        InputError, match=r"--format 'png' is not known; choose one of auto, nii\.gz, nrrd, mgz, dicom-seg"
    ):
        choose_output("png", refs_of("a.nii"), pytest.fail)
